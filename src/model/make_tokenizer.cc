#include "model/make_tokenizer.h"

#include <array>
#include <vector>

#include "base/check.h"
#include "base/json.h"

namespace millrace::model {
namespace {

constexpr std::string_view kSpecials[] = {"<unk>", "<s>", "</s>", "<pad>"};

std::string Utf8(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// GPT-2's printable letter for each byte: the byte itself if printable, else the next free letter
// from 256.
std::array<std::string, 256> ByteLetters() {
  std::array<std::string, 256> letters;
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    letters[static_cast<size_t>(b)] = Utf8(printable ? b : next++);
  }
  return letters;
}

// The bytes, frequent ones of English first, so that the first merges occur in real text.
std::vector<std::string> LettersByFrequency() {
  const std::array<std::string, 256> letters = ByteLetters();
  std::vector<std::string> order;
  std::array<bool, 256> used{};
  const auto add = [&](unsigned char b) {
    if (!std::exchange(used[b], true)) order.push_back(letters[b]);
  };
  for (char c : std::string_view(" etaoinshrdlucmfwypvbgkjqxz")) add(static_cast<unsigned char>(c));
  for (int b = 0; b < 256; ++b) add(static_cast<unsigned char>(b));
  return order;
}

struct Merge {
  std::string left, right;
};

// Pairs in growing squares of the frequency order, then each pair with a third byte.
std::vector<Merge> Merges(size_t count) {
  const std::vector<std::string> letters = LettersByFrequency();
  std::vector<Merge> merges;
  merges.reserve(count);
  for (size_t shell = 0; shell < letters.size() && merges.size() < count; ++shell) {
    for (size_t i = 0; i <= shell && merges.size() < count; ++i) {
      merges.push_back({letters[i], letters[shell]});
      if (i != shell && merges.size() < count) merges.push_back({letters[shell], letters[i]});
    }
  }
  for (size_t pair = 0; merges.size() < count; ++pair) {
    const std::string left = merges[pair].left + merges[pair].right;
    for (size_t j = 0; j < letters.size() && merges.size() < count; ++j) {
      merges.push_back({left, letters[j]});
    }
  }
  return merges;
}

}  // namespace

std::string MadeTokenizerJson(int vocab_size) {
  MR_CHECK(vocab_size >= kMadeVocabMin && vocab_size <= kMadeVocabMax) << vocab_size;
  Json vocab = Json::object(), merges = Json::array(), added = Json::array();
  int id = 0;
  for (std::string_view special : kSpecials) {
    added.push_back({{"id", id},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[std::string(special)] = id++;
  }
  for (const std::string& letter : ByteLetters()) vocab[letter] = id++;
  for (const Merge& m : Merges(static_cast<size_t>(vocab_size - id))) {
    vocab[m.left + m.right] = id++;
    merges.push_back(m.left + " " + m.right);
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"vocab", vocab},
                            {"merges", merges}}}};
  return DumpJson(tokenizer);
}

std::string MadeTokenizerConfigJson(int max_position) {
  const Json config = {
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"model_max_length", max_position},
      {"unk_token", kSpecials[kMadeUnk]},
      {"bos_token", kSpecials[kMadeBos]},
      {"eos_token", kSpecials[kMadeEos]},
      {"pad_token", kSpecials[kMadePad]},
      {"chat_template",
       "{% for message in messages %}{{ bos_token + message['role'] + '\\n' + message['content'] + "
       "eos_token + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ bos_token + "
       "'assistant\\n' }}"
       "{% endif %}"}};
  return config.dump(2);
}

}  // namespace millrace::model
