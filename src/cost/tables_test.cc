#include <gtest/gtest.h>

#include "base/testing/source_path.h"
#include "cost/csv.h"
#include "cost/layer_table_cost.h"
#include "cost/piecewise_linear.h"

namespace millrace::cost {
namespace {

TEST(CsvTest, ReadsHeaderNumbersAndText) {
  const auto csv =
      CsvTable::Parse("name, ms\r\na,1.5\n\n b ,2e3\n", "t.csv", CsvHeader::kFirstLine);
  ASSERT_TRUE(csv.ok()) << csv.status().ToString();
  ASSERT_EQ(csv->rows(), 2u);
  EXPECT_EQ(csv->Column("ms").value(), 1u);
  EXPECT_EQ(csv->HeaderCell(1), "ms");
  EXPECT_EQ(csv->Cell(1, 0), "b");
  EXPECT_EQ(csv->Number(1, 1, 0, 1e9).value(), 2000);
}

TEST(CsvTest, ErrorsNameFileLineAndColumn) {
  const auto csv =
      CsvTable::Parse("n,ms\n1,2\n\n3,fast\n4,nan\n-1,7\n", "t.csv", CsvHeader::kFirstLine);
  ASSERT_TRUE(csv.ok());
  const auto message = [&](size_t row) { return csv->Number(row, 1, 0, 10).status().message(); };
  EXPECT_EQ(message(1), "t.csv:4: \"ms\" must be a number in [0, 10], got \"fast\"");
  EXPECT_EQ(message(2), "t.csv:5: \"ms\" must be a number in [0, 10], got \"nan\"");
  EXPECT_EQ(csv->Integer(3, 0, 0, 5).status().message(),
            "t.csv:6: \"n\" must be an integer in [0, 5], got \"-1\"");
  EXPECT_EQ(csv->Column("s").status().message(), "t.csv:1: no column \"s\"");
}

TEST(CsvTest, UnevenAndEmptyFilesAreRefused) {
  const auto message = [](const char* text, CsvHeader header) {
    return CsvTable::Parse(text, "t.csv", header).status().message();
  };
  EXPECT_EQ(message("1,2\n1\n", CsvHeader::kNone), "t.csv:2: 1 field(s), the first line has 2");
  EXPECT_EQ(message("", CsvHeader::kNone), "t.csv: no data lines");
  EXPECT_EQ(message("a,b\n", CsvHeader::kFirstLine), "t.csv: no data lines");
  EXPECT_NE(message(std::string(CsvTable::kColumnsMax, ',').c_str(), CsvHeader::kNone)
                .find("more than 256 fields"),
            std::string::npos);
}

TEST(PiecewiseLinearTest, IsStraightBetweenPointsAndGoesOnAtTheEnds) {
  const PiecewiseLinear curve({{0, 1}, {2, 5}, {4, 7}});
  EXPECT_DOUBLE_EQ(curve.At(0), 1);
  EXPECT_DOUBLE_EQ(curve.At(1), 3);
  EXPECT_DOUBLE_EQ(curve.At(2), 5);
  EXPECT_DOUBLE_EQ(curve.At(3), 6);
  EXPECT_DOUBLE_EQ(curve.At(6), 9);
  EXPECT_DOUBLE_EQ(curve.At(-1), -1);
  EXPECT_DOUBLE_EQ(curve.AtSmoothed(-1), 1);
  EXPECT_DOUBLE_EQ(curve.AtSmoothed(6), 9);
}

TEST(PiecewiseLinearTest, NoiseAtTheEndDoesNotMakeTheTailFall) {
  const PiecewiseLinear curve({{0, 0}, {10, 10}, {20, 21}, {30, 30}, {40, 29}});
  EXPECT_DOUBLE_EQ(curve.AtSmoothed(50), 29 + 10 * (29.0 - 21) / 20);
  const PiecewiseLinear falling({{0, 5}, {1, 4}});
  EXPECT_DOUBLE_EQ(falling.AtSmoothed(10), 4);
  EXPECT_DOUBLE_EQ(PiecewiseLinear({{3, 7}}).At(100), 7);
}

LayerTable L4() {
  auto table = LayerTable::Load(SourcePath("src/cost/testdata/helix"));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return std::move(table).value();
}

TEST(LayerTableTest, ReadsThePublishedCurves) {
  const LayerTable table = L4();
  EXPECT_NEAR(table.PromptSeconds(250), 12e-3, 1e-12);
  EXPECT_NEAR(table.PromptSeconds(375), 16e-3, 1e-12);
  EXPECT_NEAR(table.PromptSeconds(125), 6e-3, 1e-12);
  EXPECT_NEAR(table.DecodeSeconds(2), 6.9e-3, 1e-12);
  EXPECT_NEAR(table.DecodeSeconds(5), 6.95e-3, 1e-12);
  EXPECT_EQ(table.DecodeSeconds(0), 0);
  EXPECT_GT(table.PromptSeconds(15000), 1.9 * table.PromptSeconds(7500));
  EXPECT_LT(table.PromptSeconds(15000), 2.2 * table.PromptSeconds(7500));
}

TEST(LayerTableTest, AStageIsItsLayersAndTheTwoPartsAdd) {
  const LayerTable table = L4();
  const BatchShape prompt = {
      .prefill_tokens = 500, .prefill_tokens_squared = 250000, .prefill_sequences = 1};
  BatchShape both = prompt;
  both.decode_sequences = 4;
  both.decode_context = 4000;
  const LayerTableCost one(table, 1), seven(table, 7);
  EXPECT_NEAR(one.Seconds(both), 20e-3 + 6.9e-3, 1e-12);
  EXPECT_NEAR(seven.Seconds(both), 7 * one.Seconds(both), 1e-12);
  EXPECT_EQ(seven.Seconds({}), 0);
  // One decode reads the same weights as two.
  EXPECT_DOUBLE_EQ(one.Seconds({.decode_sequences = 1, .decode_context = 9}),
                   one.Seconds({.decode_sequences = 2, .decode_context = 18}));
}

TEST(LayerTableTest, WrongFilesNameTheLine) {
  const auto message = [](const char* prompt, const char* decode) {
    const auto table = LayerTable::Parse(prompt, "p.csv", decode, "d.csv");
    EXPECT_FALSE(table.ok()) << prompt << " " << decode;
    return table.status().message();
  };
  EXPECT_EQ(message("0,0\n10,5\n10,6\n", "1,1\n"),
            "p.csv:3: tokens must be greater than in the line before");
  EXPECT_EQ(message("1,1,1\n", "1,1\n"), "p.csv:1: a line must be tokens,milliseconds");
  EXPECT_EQ(message("1,1\n", "1,-3\n"),
            "d.csv:1: field 2 must be a number in [0, 1e+09], got \"-3\"");
}

}  // namespace
}  // namespace millrace::cost
