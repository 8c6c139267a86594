#include "sched/request_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::sched {

void RequestTable::Add(std::unique_ptr<Request> request) {
  JoinQueue(*request);
  const RequestId id = request->spec.id;
  requests_.emplace(id, std::move(request));
}

void RequestTable::JoinQueue(Request& request) {
  waiting_.emplace(request.key, &request);
  waiting_prompt_tokens_ += request.prompt_tokens;
  if (request.state == RequestState::kSwapped) ++swapped_;
}

void RequestTable::LeaveQueue(const Request& request) {
  if (waiting_.erase(request.key) == 0) return;
  waiting_prompt_tokens_ -= request.prompt_tokens;
  if (request.state == RequestState::kSwapped) --swapped_;
}

Request* RequestTable::Find(RequestId id) const {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : it->second.get();
}

const Request* RequestTable::FindEvenEnded(RequestId id) const {
  if (const Request* r = Find(id)) return r;
  const auto found =
      std::ranges::find(ended_, id, [](const std::unique_ptr<Request>& r) { return r->spec.id; });
  return found == ended_.end() ? nullptr : found->get();
}

void RequestTable::Reorder(Request& request, const OrderKey& key) {
  LeaveQueue(request);
  request.key = key;
  JoinQueue(request);
}

void RequestTable::Pull(Request& request) {
  LeaveQueue(request);
  pulling_.emplace(request.key, &request);
  pulling_sequences_ += request.live();
  request.state = RequestState::kPulling;
}

void RequestTable::Run(Request& request) {
  if (request.state == RequestState::kPulling) {
    pulling_.erase(request.key);
    pulling_sequences_ -= request.live();
  } else {
    LeaveQueue(request);
  }
  running_.insert(std::ranges::upper_bound(running_, request.key, {}, &Request::key), &request);
  running_sequences_ += request.live();
  request.state = RequestState::kRunning;
}

void RequestTable::WaitAgain(Request& request, RequestState state) {
  Finish(request);
  request.state = state;
  JoinQueue(request);
}

void RequestTable::DropSwap(Request& request) {
  MR_CHECK(request.state == RequestState::kSwapped);
  request.state = RequestState::kPreempted;
  --swapped_;
}

void RequestTable::Finish(Request& request) {
  if (request.state == RequestState::kRunning) {
    running_.erase(std::ranges::lower_bound(running_, request.key, {}, &Request::key));
    running_sequences_ -= request.live();
  } else if (request.state == RequestState::kPulling) {
    pulling_.erase(request.key);
    pulling_sequences_ -= request.live();
  } else {
    LeaveQueue(request);
  }
  request.state = RequestState::kFinished;
}

void RequestTable::NoteEnded(const Request& request) {
  if (request.state == RequestState::kRunning) --running_sequences_;
  if (request.state == RequestState::kPulling) --pulling_sequences_;
}

void RequestTable::Leave(Request& request) {
  auto node = requests_.extract(request.spec.id);
  leaving_.push_back(std::move(node.mapped()));
}

void RequestTable::Bury(Request& request) {
  if (!request.detached) {
    auto node = requests_.extract(request.spec.id);
    ended_.push_back(std::move(node.mapped()));
    return;
  }
  const auto place = std::ranges::find(leaving_, &request, &std::unique_ptr<Request>::get);
  ended_.push_back(std::move(*place));
  leaving_.erase(place);
}

void RequestTable::CheckIntegrity() const {
  int running = 0, pulling = 0;
  size_t queued = 0;
  for (const auto& [id, r] : requests_) {
    if (r->state == RequestState::kRunning) running += r->live();
    if (r->state == RequestState::kPulling) pulling += r->live();
    queued += r->state == RequestState::kFinished ? 0 : 1;
  }
  MR_CHECK(running == running_sequences_ && pulling == pulling_sequences_);
  MR_CHECK(queued == running_.size() + pulling_.size() + waiting_.size())
      << "a request is in no queue";
  int64_t waiting_tokens = 0;
  int swapped = 0;
  for (const auto& [key, r] : waiting_) {
    waiting_tokens += r->prompt_tokens;
    swapped += r->state == RequestState::kSwapped ? 1 : 0;
  }
  MR_CHECK(waiting_tokens == waiting_prompt_tokens_ && swapped == swapped_);
  MR_CHECK(std::ranges::is_sorted(running_, {}, &Request::key));
}

}  // namespace millrace::sched
