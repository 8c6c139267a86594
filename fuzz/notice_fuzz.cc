// Answers of metadata services, files and lines of commands. The first byte selects the source; the
// rest are answers to what it asks, one after the other, each with a byte for its code. Whatever
// they say, the source asks again soon and not without end, complains of few things, and its
// deadlines are ahead.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "notice/aws.h"
#include "notice/azure.h"
#include "notice/exec_source.h"
#include "notice/file_source.h"
#include "notice/gcp.h"

namespace millrace::notice {
namespace {

constexpr char kEndOfAnswer = '\x01';
constexpr uint8_t kWithHeaders = 0x80;  // of the byte for the code: the body is in headers too

Answer MakeAnswer(std::string_view text) {
  constexpr int kCodes[] = {200, 404, 401, 503};
  Answer answer;
  const auto what = static_cast<uint8_t>(text.empty() ? 0 : text.front());
  answer.code = kCodes[what % 4];
  answer.body = text.substr(std::min<size_t>(1, text.size()));
  answer.headers = {{"Metadata-Flavor", "Google"}};
  if ((what & kWithHeaders) == 0) return answer;
  for (const char* name : {"Date", "ETag", "X-aws-ec2-metadata-token-ttl-seconds"}) {
    answer.headers.emplace_back(name, answer.body);
  }
  return answer;
}

void CheckNotice(const Notice& notice, Time now) {
  MR_CHECK(!notice.id.empty() && notice.id.size() <= 3 * kFieldBytesMax);
  if (notice.what.deadline) MR_CHECK(*notice.what.deadline > now);
}

void Answers(MetadataSource& source, std::string_view text) {
  Moment now{Time{} + Duration::Seconds(100), WallTime{1'800'000'000}};
  NoticeBoard board;
  size_t complaints = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find(kEndOfAnswer), text.size());
    const Question question = source.Next(now);
    MR_CHECK(question.target.starts_with('/') && question.target.size() < 512);
    MR_CHECK(question.target.find_first_of(" \r\n") == std::string::npos);
    source.OnAnswer(MakeAnswer(text.substr(0, end)), now);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::vector<Notice> notices = source.Notices();
    board.Put(0, notices);
    MR_CHECK(board.current().has_value() == !notices.empty());
    complaints += source.TakeComplaints().size();
    MR_CHECK(source.due() >= now.time);
    MR_CHECK(source.due() - now.time <= MetadataSource::kBackOffMost);
    now.time = std::max(source.due(), now.time + Duration::Millis(1));
    source.SetDrained(complaints % 2 == 1);
  }
  MR_CHECK(complaints <= Source::kComplaintsMax);
}

// What holds on its own, whatever was asked.
void Parsers(std::string_view text) {
  const Moment now{Time{} + Duration::Seconds(100), WallTime{1'800'000'000}};
  const Answer answer = MakeAnswer(text);
  for (const auto& notices :
       {ReadAwsAction(answer, now), ReadAwsRebalance(answer), ReadAwsMaintenance(answer, now)}) {
    if (!notices.ok()) continue;
    for (const Notice& notice : *notices) CheckNotice(notice, now.time);
  }
  if (const auto events = ReadAzureEvents(answer, "vm-1", now); events.ok()) {
    for (const AzureEvent& event : *events) CheckNotice(event.notice, now.time);
  }
  if (const auto said = ParseExecLine(text, now); said.ok() && *said) {
    CheckNotice(**said, now.time);
  }
  if (const auto deadline = ParseFileDeadline(text); deadline.ok()) {
    MR_CHECK(!deadline->in || (*deadline->in >= Duration() && *deadline->in <= kFileDeadlineMost));
  }
}

void Try(uint8_t which, std::string_view text) {
  std::unique_ptr<MetadataSource> source;
  switch (which % 5) {
    case 0: return Parsers(text);
    case 1: source = std::make_unique<AwsSource>(); break;
    case 2: source = std::make_unique<GcpSource>(GcpSource::Value::kPreempted); break;
    case 3: source = std::make_unique<GcpSource>(GcpSource::Value::kMaintenance); break;
    default: source = std::make_unique<AzureSource>(); break;
  }
  Answers(*source, text);
}

}  // namespace
}  // namespace millrace::notice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  millrace::notice::Try(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
