#include "serve/observe/request_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/private_file.h"

namespace millrace::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;  // schemas keep the client's order

OrderedJson BodyToAskAgain(const LoggedRequest& request) {
  OrderedJson body = OrderedJson::parse(request.body);
  for (const char* key : {"stream", "stream_options", "request_id", "user", "prompt_cache_key"}) {
    body.erase(key);
  }
  if (!request.chat) body["prompt"] = request.prompt;
  body["seed"] = request.seed;
  body["return_token_ids"] = true;
  return body;
}

// The bytes up to the end of the last whole line: a crash may have cut the one after it.
off_t WholeBytes(int fd, off_t bytes) {
  char last = 0;
  while (bytes > 0 && pread(fd, &last, 1, bytes - 1) == 1 && last != '\n') --bytes;
  return bytes;
}

}  // namespace

std::string EncodeLoggedRequest(const LoggedRequest& request) {
  OrderedJson line = {{"millrace_request_log", kRequestLogVersion},
                      {"unix_ms", request.unix_ms},
                      {"id", request.id},
                      {"route", request.chat ? "/v1/chat/completions" : "/v1/completions"},
                      {"fingerprint", request.fingerprint},
                      {"request", BodyToAskAgain(request)},
                      {"prompt_token_ids", request.prompt},
                      {"answers", OrderedJson::array()}};
  for (const LoggedRequest::Answer& answer : request.answers) {
    line["answers"].push_back(
        {{"token_ids", answer.tokens}, {"finish_reason", answer.finish_reason}});
  }
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<std::unique_ptr<RequestLog>> RequestLog::Open(const std::string& path,
                                                     std::function<void(const Status&)> failed) {
  constexpr mode_t kOwnerOnly = 0600;
  MakePrivateFile(path);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kOwnerOnly);
  struct stat file = {};
  if (fd < 0 || fstat(fd, &file) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return InvalidArgument(fmt::format("{}: {}", path, std::strerror(error)));
  }
  const off_t whole = WholeBytes(fd, file.st_size);
  if (whole < file.st_size && ftruncate(fd, whole) != 0) {
    const int error = errno;
    close(fd);
    return InvalidArgument(fmt::format("{}: {}", path, std::strerror(error)));
  }
  return std::unique_ptr<RequestLog>(
      new RequestLog(fd, static_cast<size_t>(whole), std::move(failed)));
}

RequestLog::RequestLog(int fd, size_t bytes, std::function<void(const Status&)> failed)
    : fd_(fd), bytes_(bytes), failed_(std::move(failed)), thread_([this] { Run(); }) {}

RequestLog::~RequestLog() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  close(fd_);
}

void RequestLog::Write(const LoggedRequest& request) {
  std::string line = EncodeLoggedRequest(request) + '\n';
  const MutexLock lock(mutex_);
  if (ended_) return;
  if (waiting_bytes_ + line.size() > kRequestLogWaitingBytesMax) {
    ++left_out_;
    return;
  }
  waiting_bytes_ += line.size();
  waiting_.push_back(std::move(line));
  changed_.notify_all();
}

void RequestLog::Run() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::string line = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const Status status = WriteLine(line);
    if (!status.ok()) failed_(status);
    lock.lock();
    waiting_bytes_ -= line.size();
    if (!status.ok()) {
      ended_ = true;
      waiting_.clear();
    }
    if (const uint64_t left_out = waiting_.empty() ? std::exchange(left_out_, 0) : 0) {
      MR_LOG(warn, "{} requests are not in the request log: its disk was too slow", left_out);
    }
  }
}

Status RequestLog::WriteLine(const std::string& line) {
  bytes_ += line.size();
  if (bytes_ > kRequestLogBytesMax) {
    return ResourceExhausted(fmt::format("the file has {} bytes, the limit is {}",
                                         bytes_ - line.size(), kRequestLogBytesMax));
  }
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Unavailable(std::strerror(errno));
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return OkStatus();
}

}  // namespace millrace::serve
