#include "experiments/lib/vidur/vidur_table.h"

#include <gtest/gtest.h>

#include "base/testing/source_path.h"

namespace millrace::experiments::vidur {
namespace {

const std::string kTablesFolder = SourcePath("experiments/lib/vidur/testdata/");

TEST(VidurTableTest, ReadsOperatorsAndShape) {
  const auto rows = LoadVidurOperators(kTablesFolder + "mlp.csv");
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), 5u);
  const VidurOperatorRow& row = rows->front();
  EXPECT_EQ(row.num_tokens, 4096);
  EXPECT_EQ(row.tensor_parallel, 1);
  EXPECT_EQ(row.hidden, 4096);
  EXPECT_EQ(row.intermediate, 11008);
  EXPECT_TRUE(row.gated_mlp);
  EXPECT_EQ(row.median_s.size(), 10u);
  EXPECT_NEAR(row.median_s.at("mlp_up_proj"), 3.3655e-3, 1e-9);
  EXPECT_NEAR(row.median_s.at("add"), 55e-6, 1e-12);
}

TEST(VidurTableTest, ReadsCollectives) {
  const std::string path = kTablesFolder + "send_recv.csv";
  const auto rows = LoadVidurCollectives(path, "send_recv");
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[1].bytes, 10240);
  EXPECT_EQ((*rows)[1].num_workers, 2);
  EXPECT_EQ((*rows)[1].devices_per_node, 1);
  EXPECT_NEAR((*rows)[1].median_s, 24e-6, 1e-12);
  const auto wrong = LoadVidurCollectives(path, "all_reduce");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("time_stats.all_reduce.median"), std::string::npos);
}

TEST(VidurTableTest, WrongFilesNameTheLine) {
  EXPECT_EQ(ParseVidurOperators("a,b\n1,2\n", "v.csv").status().message(),
            "v.csv:2: no column time_stats.NAME.median");
  const auto gated = ParseVidurOperators(
      "time_stats.add.median,n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,"
      "num_tokens,num_tensor_parallel_workers\n1,1,1,1,1,1,maybe,1,1\n",
      "v.csv");
  EXPECT_EQ(gated.status().message(), "v.csv:2: \"use_gated_mlp\" must be True or False");
}

}  // namespace
}  // namespace millrace::experiments::vidur
