#include "ops/cluster/kept_plan.h"

#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace millrace::ops {
namespace {

constexpr char kKey[] = "applied-plan";

}  // namespace

KeptPlan::KeptPlan(std::shared_ptr<Leading> leading, std::string model_fingerprint,
                   std::string layout)
    : leading_(std::move(leading)),
      model_fingerprint_(std::move(model_fingerprint)),
      layout_(std::move(layout)) {}

Result<std::optional<WorkerPlan>> KeptPlan::Read() {
  std::optional<WorkerPlan> none;
  MR_ASSIGN_OR_RETURN(const std::optional<std::string> value, leading_->Kept(kKey));
  if (!value || value->empty()) return none;
  const Result<Json> kept = ParseJson(*value);
  if (!kept.ok() || !kept->is_object() || kept->value("model", Json()) != model_fingerprint_ ||
      kept->value("layout", Json()) != layout_ || !kept->value("plan", Json()).is_string()) {
    MR_LOG(info, "ignoring the plan that was applied last: it is for another model or layout");
    return none;
  }
  const std::string text = kept->at("plan").get<std::string>();
  auto plan = plan::ParseWorkerPlan(text, kKey);
  if (!plan.ok()) {
    MR_LOG(error, "the plan applied last cannot be read: {}", plan.status().message());
    return none;
  }
  MR_LOG(info, "starting with the plan that was applied last");
  const MutexLock lock(mutex_);
  in_force_ = text;
  return std::optional<WorkerPlan>(*std::move(plan));
}

Status KeptPlan::Write(const std::string& text, int64_t epoch) {
  const MutexLock lock(mutex_);
  MR_RETURN_IF_ERROR(Keep(text));
  written_ = {epoch, text};
  return OkStatus();
}

Status KeptPlan::Settle(int64_t epoch, bool in_force) {
  const MutexLock lock(mutex_);
  if (!written_ || written_->first != epoch) return OkStatus();
  const std::string text = std::exchange(written_, std::nullopt)->second;
  if (!in_force) return Keep(in_force_);
  in_force_ = text;
  return OkStatus();
}

Status KeptPlan::Keep(const std::string& text) const {
  if (text.empty()) return leading_->Keep(kKey, "");
  return leading_->Keep(
      kKey, DumpJson({{"model", model_fingerprint_}, {"layout", layout_}, {"plan", text}}));
}

}  // namespace millrace::ops
