#include "experiments/lib/splitwise/splitwise_table.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/source_path.h"

namespace millrace::experiments::splitwise {
namespace {

using cost::BatchShape;

std::vector<SplitwiseRow> Rows() {
  auto rows =
      LoadSplitwiseRows(SourcePath("experiments/lib/splitwise/testdata/llama2-70b-a100-tp8.csv"));
  EXPECT_TRUE(rows.ok()) << rows.status().ToString();
  return std::move(rows).value();
}

BatchShape PromptShape(int64_t tokens) {
  return {.prefill_tokens = tokens, .prefill_sequences = 1};
}

TEST(SplitwiseTableTest, MediansAreThePublishedAnchors) {
  const auto cost = TableCost::Create(Rows(), TableCost::TokenAxis::kSequences);
  ASSERT_TRUE(cost.ok()) << cost.status().ToString();
  EXPECT_NEAR(cost->Seconds(PromptShape(2048)) * 1e3, 274, 0.5);
  EXPECT_NEAR(cost->Seconds(PromptShape(8192)) * 1e3, 1550, 0.5);
  EXPECT_NEAR(cost->Seconds(PromptShape(32768)) * 1e3, 7554, 0.5);
  EXPECT_NEAR(cost->Seconds({.decode_sequences = 64, .decode_context = 64 * 576}) * 1e3, 71.6, 0.1);
  EXPECT_NEAR(cost->Seconds(PromptShape(5120)) * 1e3, (274.27 + 1549.8) / 2, 0.5);
  BatchShape mixed = PromptShape(2040);
  mixed.decode_sequences = 8;
  EXPECT_NEAR(cost->Seconds(mixed), 1.1 * cost->Seconds(PromptShape(2048)), 1e-12);
  EXPECT_EQ(cost->Seconds({}), 0);
}

TEST(SplitwiseTableTest, TheSimulatorsOwnTokenCurveHasBatchTokensBelow) {
  const auto cost = TableCost::Create(Rows(), TableCost::TokenAxis::kBatchTokens);
  ASSERT_TRUE(cost.ok());
  EXPECT_NEAR(cost->TokenSeconds(32768) * 1e3, 71.6, 0.1);
  EXPECT_NEAR(cost->TokenSeconds(8192) * 1e3, 46.5, 0.1);
}

TEST(SplitwiseTableTest, SamplesAreTheBatchesThatWereTimed) {
  const SplitwiseRow row{
      .prompt_size = 512, .batch_size = 4, .token_size = 128, .prompt_s = 1, .token_s = 2};
  EXPECT_EQ(row.Prompt().batch.prefill_tokens, 2048);
  EXPECT_EQ(row.Prompt().batch.prefill_tokens_squared, 4 * 512 * 512);
  EXPECT_EQ(row.Prompt().batch.prefill_sequences, 4);
  EXPECT_EQ(row.Decode().batch.decode_sequences, 4);
  EXPECT_EQ(row.Decode().batch.decode_context, 4 * (512 + 64));
}

TEST(SplitwiseTableTest, MixedTablesAndWrongRowsAreRefused) {
  auto rows = Rows();
  rows.back().hardware = "h100-80gb";
  EXPECT_FALSE(TableCost::Create(rows, TableCost::TokenAxis::kSequences).ok());
  EXPECT_FALSE(TableCost::Create({}, TableCost::TokenAxis::kSequences).ok());
  const std::string header =
      "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n";
  const auto message = [&](const char* row) {
    return ParseSplitwiseRows(header + row, "s.csv").status().message();
  };
  EXPECT_EQ(message("m,h,512,1,128,20,0,8\n"),
            "s.csv:2: \"token_time\" must be a number in [1e-06, 1e+09], got \"0\"");
  EXPECT_EQ(message("m,h,16777216,65536,128,20,1,8\n"),
            "s.csv:2: more than 16777216 tokens in a batch");
  EXPECT_EQ(ParseSplitwiseRows("model\nm\n", "s.csv").status().message(),
            "s.csv:1: no column \"hardware\"");
}

}  // namespace
}  // namespace millrace::experiments::splitwise
