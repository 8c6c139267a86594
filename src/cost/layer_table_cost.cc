#include "cost/layer_table_cost.h"

#include <utility>
#include <vector>

#include "base/file.h"
#include "cost/csv.h"

namespace millrace::cost {
namespace {

Result<PiecewiseLinear> ParseCurve(std::string_view text, std::string_view file) {
  MR_ASSIGN_OR_RETURN(const CsvTable csv,
                      CsvTable::Parse(std::string(text), file, CsvHeader::kNone));
  if (csv.columns() != 2) return csv.ErrorAt(0, "a line must be tokens,milliseconds");
  std::vector<PiecewiseLinear::Point> points;
  // Without a point at zero tokens, the curve begins at the origin.
  for (size_t row = 0; row < csv.rows(); ++row) {
    MR_ASSIGN_OR_RETURN(const int64_t tokens, csv.Integer(row, 0, 0, LayerTable::kTokensMax));
    MR_ASSIGN_OR_RETURN(const double ms, csv.Number(row, 1, 0, LayerTable::kLayerMsMax));
    if (points.empty() && tokens > 0) points.push_back({});
    if (!points.empty() && static_cast<double>(tokens) <= points.back().x) {
      return csv.ErrorAt(row, "tokens must be greater than in the line before");
    }
    points.push_back({static_cast<double>(tokens), ms});
  }
  return PiecewiseLinear(std::move(points));
}

double CurveSeconds(const PiecewiseLinear& curve, double tokens) {
  return tokens <= 0 ? 0 : curve.AtSmoothed(tokens) * 1e-3;
}

}  // namespace

Result<LayerTable> LayerTable::Parse(std::string_view prompt_csv, std::string_view prompt_file,
                                     std::string_view decode_csv, std::string_view decode_file) {
  MR_ASSIGN_OR_RETURN(PiecewiseLinear prompt, ParseCurve(prompt_csv, prompt_file));
  MR_ASSIGN_OR_RETURN(PiecewiseLinear decode, ParseCurve(decode_csv, decode_file));
  return LayerTable(std::move(prompt), std::move(decode));
}

Result<LayerTable> LayerTable::Load(const std::string& folder) {
  const std::string prompt_file = folder + "/prompt_bs2time.csv";
  const std::string decode_file = folder + "/decode_bs2time.csv";
  MR_ASSIGN_OR_RETURN(const std::string prompt, ReadFile(prompt_file, CsvTable::kBytesMax));
  MR_ASSIGN_OR_RETURN(const std::string decode, ReadFile(decode_file, CsvTable::kBytesMax));
  return Parse(prompt, prompt_file, decode, decode_file);
}

double LayerTable::PromptSeconds(double tokens) const { return CurveSeconds(prompt_, tokens); }
double LayerTable::DecodeSeconds(double tokens) const { return CurveSeconds(decode_, tokens); }

LayerTableCost::LayerTableCost(LayerTable table, int layers)
    : table_(std::move(table)), layers_(layers) {
  MR_CHECK(layers_ >= 0) << layers_;
}

double LayerTableCost::Seconds(const BatchShape& batch) const {
  double decode = table_.DecodeSeconds(batch.decode_sequences);
  if (batch.decode_sequences == 1) decode *= 2;
  return layers_ * (table_.PromptSeconds(static_cast<double>(batch.prefill_tokens)) + decode);
}

}  // namespace millrace::cost
