#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

// Indexed by number on the wire: new entries are added at the end; none moves.
constexpr std::array kStatusCodes = {
    StatusCode::kOk,        StatusCode::kInvalidArgument,    StatusCode::kUnauthenticated,
    StatusCode::kNotFound,  StatusCode::kTooLarge,           StatusCode::kResourceExhausted,
    StatusCode::kCancelled, StatusCode::kUnavailable,        StatusCode::kDeadlineExceeded,
    StatusCode::kDataLoss,  StatusCode::kFailedPrecondition, StatusCode::kUnimplemented,
    StatusCode::kInternal,
};

uint32_t Number(StatusCode code) {
  return static_cast<uint32_t>(std::find(kStatusCodes.begin(), kStatusCodes.end(), code) -
                               kStatusCodes.begin());
}

}  // namespace

void ToProto(const Status& from, proto::Status& to) {
  to.set_code(Number(from.code()));
  // An error may quote any text; the receiver accepts no control characters.
  std::string& text = *to.mutable_message();
  text.assign(from.message(), 0, kStatusBytesMax);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
}

Status FromProto(const proto::Status& from, Status& out) {
  if (from.code() >= kStatusCodes.size()) {
    return OutOfRange("code", from.code(), 0, kStatusCodes.size() - 1);
  }
  std::string message;
  MR_RETURN_IF_ERROR(TakeText("message", from.message(), kStatusBytesMax, message));
  if (from.code() == 0 && !message.empty()) {
    return InvalidArgument("message must be empty if there is no error");
  }
  out = Status(kStatusCodes[from.code()], std::move(message));
  return OkStatus();
}

void ToProto(const LayerRange& from, proto::LayerRange& to) {
  const auto& [begin, end] = from;
  to.set_begin(static_cast<uint32_t>(begin));
  to.set_end(static_cast<uint32_t>(end));
}

Status FromProto(const proto::LayerRange& from, LayerRange& out) {
  MR_RETURN_IF_ERROR(Take("end", from.end(), out.end, 1, kLayersMax));
  return Take("begin", from.begin(), out.begin, 0, from.end() - 1);
}

void ToProto(const TensorRank& from, proto::TensorRank& to) {
  const auto& [rank, size] = from;
  to.set_rank(static_cast<uint32_t>(rank));
  to.set_size(static_cast<uint32_t>(size));
}

Status FromProto(const proto::TensorRank& from, TensorRank& out) {
  const uint32_t size = from.size();
  if (size != 1 && size != 2 && size != 4 && size != 8) {
    return InvalidArgument(fmt::format("size must be 1, 2, 4 or 8, got {}", size));
  }
  out.size = static_cast<int>(size);
  return Take("rank", from.rank(), out.rank, 0, size - 1);
}

void ToProto(const WorkerAddress& from, proto::WorkerAddress& to) {
  const auto& [worker, incarnation, control, data, host_id, process_id] = from;
  to.set_worker(worker.value());
  to.set_incarnation(incarnation.value());
  to.set_control(control);
  to.set_data(data);
  to.set_host_id(host_id);
  to.set_process_id(static_cast<uint64_t>(process_id));
}

Status FromProto(const proto::WorkerAddress& from, WorkerAddress& out) {
  out.worker = WorkerId(from.worker());
  out.incarnation = Incarnation(from.incarnation());
  MR_RETURN_IF_ERROR(TakeAddress("control", from.control(), out.control));
  MR_RETURN_IF_ERROR(TakeAddress("data", from.data(), out.data));
  MR_RETURN_IF_ERROR(TakeText("host_id", from.host_id(), kNameBytesMax, out.host_id));
  return Take("process_id", from.process_id(), out.process_id);
}

void ToProto(const KvHandle& from, proto::KvHandle& to) {
  const auto& [pipeline, generation, nonce] = from;
  to.set_pipeline(pipeline.value());
  to.set_generation(generation);
  to.set_nonce(nonce.data(), nonce.size());
}

Status FromProto(const proto::KvHandle& from, KvHandle& out) {
  out.pipeline = PipelineId(from.pipeline());
  out.generation = from.generation();
  if (from.nonce().size() != out.nonce.size()) {
    return InvalidArgument(
        fmt::format("nonce must have {} bytes, got {}", out.nonce.size(), from.nonce().size()));
  }
  std::copy(from.nonce().begin(), from.nonce().end(), out.nonce.begin());
  return OkStatus();
}

void ToProto(const Envelope& from, proto::Envelope& to) {
  const auto& [term, incarnation, sequence] = from;
  to.set_term(term.value());
  to.set_incarnation(incarnation.value());
  to.set_sequence(sequence);
}

Status TakeProtocol(uint32_t newest, std::optional<uint32_t> oldest, ProtocolRange& out) {
  MR_RETURN_IF_ERROR(Take("protocol_version", newest, out.newest));
  return Take("oldest_protocol_version", oldest.value_or(newest), out.oldest, 0, newest);
}

Status FromProto(const proto::Envelope& from, Envelope& out) {
  out.term = Term(from.term());
  out.incarnation = Incarnation(from.incarnation());
  out.sequence = from.sequence();
  return OkStatus();
}

}  // namespace millrace::wire
