#include "text/turn_end.h"

#include <gtest/gtest.h>

#include <string>

#include "base/testing/source_path.h"

namespace millrace::text {
namespace {

class TurnEndTest : public ::testing::Test {
 protected:
  std::optional<TokenId> EndOf(const std::string& source) const {
    TokenizerConfig config;
    config.eos_token = "<|endoftext|>";
    config.chat_templates = {{kDefaultTemplateName, source}};
    const auto loaded = ChatTemplate::FromConfig(config, tokenizer_->special_tokens());
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return TurnEnd(**loaded, *tokenizer_);
  }
  const std::shared_ptr<const Tokenizer> tokenizer_ =
      Tokenizer::Load(SourcePath("src/text/testdata/tokenizers/byte_level")).value();
};

TEST_F(TurnEndTest, IsTheSpecialTokenAfterTheAnswer) {
  const auto end = tokenizer_->IdOf("<|im_end|>");
  ASSERT_TRUE(end);
  EXPECT_EQ(EndOf("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                  "{% endfor %}"),
            end);
  EXPECT_EQ(EndOf("{% for m in messages %}{{ m.content }} \n<|im_end|>{% endfor %}"), end);
  EXPECT_EQ(EndOf("{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}"
                  "{{ eos_token }}{% endif %}{% endfor %}"),
            tokenizer_->IdOf("<|endoftext|>"));
}

TEST_F(TurnEndTest, ThereIsNoneWithoutASpecialToken) {
  // <think> is a token, but not a special one.
  for (const char* source :
       {"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        "{% for m in messages %}{{ m.content }}<think>{% endfor %}",
        "{% for m in messages %}{{ m.content }}.<|im_end|>{% endfor %}",
        "{{ raise_exception('no') }}", "{{ messages[0].content }}<|im_end|>"}) {
    EXPECT_EQ(EndOf(source), std::nullopt) << source;
  }
}

}  // namespace
}  // namespace millrace::text
