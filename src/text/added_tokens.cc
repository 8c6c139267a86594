#include "text/added_tokens.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "text/tokenizer_config.h"

namespace millrace::text {
namespace {

constexpr TokenId kStatedIdMax = 1 << 30;

// bos, eos and so on. A field of tokenizer_config.json, or of special_tokens_map.json.
constexpr std::string_view kSpecialNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};
constexpr std::string_view kSpecialLists[] = {"additional_special_tokens", "extra_special_tokens"};

Status ReadFlag(const Json& token, const char* name, bool& flag) {
  auto it = token.find(name);
  if (it == token.end() || it->is_null()) return OkStatus();
  if (!it->is_boolean()) return InvalidArgument(fmt::format("{} must be true or false", name));
  flag = it->get<bool>();
  return OkStatus();
}

// A token is a string, or an object with "content" and flags.
Result<AddedToken> ReadAddedToken(const Json& value, bool special) {
  AddedToken token;
  token.special = special;
  token.normalized = !special;
  if (value.is_string()) {
    token.content = value.get<std::string>();
    return token;
  }
  auto content = value.is_object() ? value.find("content") : value.end();
  if (!value.is_object() || content == value.end() || !content->is_string()) {
    return InvalidArgument("a token must be a string or an object with a content");
  }
  token.content = content->get<std::string>();
  MR_RETURN_IF_ERROR(ReadFlag(value, "single_word", token.single_word));
  MR_RETURN_IF_ERROR(ReadFlag(value, "lstrip", token.lstrip));
  MR_RETURN_IF_ERROR(ReadFlag(value, "rstrip", token.rstrip));
  MR_RETURN_IF_ERROR(ReadFlag(value, "special", token.special));
  token.normalized = !token.special;
  MR_RETURN_IF_ERROR(ReadFlag(value, "normalized", token.normalized));
  token.special = token.special || special;
  return token;
}

Result<TokenId> ReadStatedId(std::string_view text) {
  TokenId id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0 || id > kStatedIdMax) {
    return InvalidArgument(
        fmt::format("\"{}\" is not a token id in [0, {}]", Printable(text, 32), kStatedIdMax));
  }
  return id;
}

// {"151657": {"content": "<tool_call>", ...}, ...}, by id.
Result<std::vector<AddedToken>> ReadDecoder(const Json& decoder) {
  if (!decoder.is_object()) return InvalidArgument("must be an object of tokens by id");
  std::map<TokenId, AddedToken> by_id;
  for (const auto& [key, value] : decoder.items()) {
    MR_ASSIGN_OR_RETURN(const TokenId id, ReadStatedId(key));
    Result<AddedToken> token = ReadAddedToken(value, false);
    if (!token.ok()) return token.status().WithContext(fmt::format("id {}", id));
    token->stated_id = id;
    by_id[id] = std::move(*token);
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

// {"<tool_call>": 151657, ...}: before added_tokens_decoder, slow tokenizers kept them so.
Result<std::vector<AddedToken>> ReadLegacy(const Json& added) {
  std::map<TokenId, AddedToken> by_id;
  for (const auto& [content, id] : added.items()) {
    const bool usual = id.is_number_integer() && id.get<double>() >= 0 &&
                       id.get<double>() <= static_cast<double>(kStatedIdMax);
    if (!usual) {
      return InvalidArgument(fmt::format("the id of \"{}\" must be a whole number in [0, {}]",
                                         Printable(content, 60), kStatedIdMax));
    }
    AddedToken token{.content = content, .stated_id = id.get<TokenId>(), .only_if_new = true};
    by_id[*token.stated_id] = std::move(token);
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

// The tokens that have a role, each text once.
class Specials {
 public:
  // Roles that an earlier file gave count. `with_lists`: the tokens without a role as well.
  Status Read(const Json& config, bool with_lists) {
    for (const std::string_view name : kSpecialNames) {
      auto it = config.find(name);
      if (it == config.end() || it->is_null() || !roles_.insert(name).second) continue;
      MR_RETURN_IF_ERROR(Add(*it).WithContext(std::string(name)));
    }
    if (!with_lists) return OkStatus();
    for (const std::string_view name : kSpecialLists) {
      auto it = config.find(name);
      if (it == config.end() || it->is_null()) continue;
      // A list, or tokens by the model's own names for them.
      if (!it->is_array() && !it->is_object()) {
        return InvalidArgument(fmt::format("{} must be a list of tokens", name));
      }
      for (const Json& value : *it) MR_RETURN_IF_ERROR(Add(value).WithContext(std::string(name)));
    }
    return OkStatus();
  }
  bool Has(const std::string& content) const { return texts_.contains(content); }
  std::vector<AddedToken> Take() { return std::move(tokens_); }

 private:
  Status Add(const Json& value) {
    MR_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(value, true));
    token.only_if_new = true;
    if (texts_.insert(token.content).second) tokens_.push_back(std::move(token));
    return OkStatus();
  }

  std::vector<AddedToken> tokens_;
  std::set<std::string> texts_;
  std::set<std::string_view> roles_;
};

}  // namespace

Result<std::vector<AddedToken>> LoadAddedTokens(const std::string& folder) {
  const std::string config_path = folder + "/tokenizer_config.json";
  MR_ASSIGN_OR_RETURN(const Json config, ReadTokenizerFile(config_path));
  Specials specials;
  MR_RETURN_IF_ERROR(specials.Read(config, true).WithContext(config_path));
  const std::string map_path = folder + "/special_tokens_map.json";
  MR_ASSIGN_OR_RETURN(const Json map, ReadTokenizerFile(map_path));
  // As in transformers, the older files add tokens only beside an older tokenizer_config.json.
  auto decoder = config.find("added_tokens_decoder");
  const bool older = decoder == config.end() || decoder->is_null();
  MR_RETURN_IF_ERROR(specials.Read(map, older).WithContext(map_path));
  std::string path = config_path + ": added_tokens_decoder";
  Result<std::vector<AddedToken>> tokens = std::vector<AddedToken>();
  if (older) {
    path = folder + "/added_tokens.json";
    MR_ASSIGN_OR_RETURN(const Json added, ReadTokenizerFile(path));
    tokens = ReadLegacy(added);
  } else {
    tokens = ReadDecoder(*decoder);
  }
  if (!tokens.ok()) return tokens.status().WithContext(path);
  std::set<std::string> listed;
  for (AddedToken& token : *tokens) {
    listed.insert(token.content);
    if (!specials.Has(token.content)) continue;
    token.special = true;
    if (older) token.normalized = false;
  }
  for (AddedToken& special : specials.Take()) {
    if (!listed.contains(special.content)) tokens->push_back(std::move(special));
  }
  return tokens;
}

std::string ToJsonText(const std::vector<AddedToken>& tokens) {
  Json list = Json::array();
  for (const AddedToken& token : tokens) {
    list.push_back({{"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special},
                    {"only_if_new", token.only_if_new}});
  }
  return DumpJson(list);
}

}  // namespace millrace::text
