#include "cluster/store/testing/etcd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace millrace::cluster::testing {
namespace {

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  MR_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  MR_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

// The kernel kills the child when the thread that started it ends.
pid_t Spawn(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  MR_CHECK(pid >= 0);
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(out, 1);
  ::dup2(out, 2);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

EtcdProcess::EtcdProcess(int members, std::vector<std::string> flags, std::string scheme)
    : flags_(std::move(flags)), scheme_(std::move(scheme)) {
  for (int i = 0; i < members; ++i) {
    members_.push_back({.client_port = FreePort(), .peer_port = FreePort()});
  }
  for (int i = 0; i < members; ++i) Start(i);
}

EtcdProcess::~EtcdProcess() {
  for (int i = 0; i < members(); ++i) Kill(i);
}

std::vector<std::string> EtcdProcess::endpoints() const {
  std::vector<std::string> all;
  for (const Member& member : members_) {
    all.push_back(fmt::format("127.0.0.1:{}", member.client_port));
  }
  return all;
}

void EtcdProcess::Kill(int member) {
  Member& one = members_[static_cast<size_t>(member)];
  if (one.pid < 0) return;
  ::kill(one.pid, SIGKILL);
  ::waitpid(one.pid, nullptr, 0);
  one.pid = -1;
}

void EtcdProcess::Start(int member) {
  Member& one = members_[static_cast<size_t>(member)];
  MR_CHECK(one.pid < 0) << "the member runs already";
  std::string peers;
  for (size_t i = 0; i < members_.size(); ++i) {
    peers += fmt::format("{}m{}=http://127.0.0.1:{}", i ? "," : "", i, members_[i].peer_port);
  }
  const std::string client = fmt::format("{}://127.0.0.1:{}", scheme_, one.client_port);
  const std::string peer = fmt::format("http://127.0.0.1:{}", one.peer_port);
  std::vector<std::string> command = {"etcd",
                                      "--name",
                                      fmt::format("m{}", member),
                                      "--data-dir",
                                      fmt::format("{}/m{}", folder_.path(), member),
                                      "--listen-client-urls",
                                      client,
                                      "--advertise-client-urls",
                                      client,
                                      "--listen-peer-urls",
                                      peer,
                                      "--initial-advertise-peer-urls",
                                      peer,
                                      "--initial-cluster",
                                      peers,
                                      "--initial-cluster-state",
                                      "new"};
  command.insert(command.end(), flags_.begin(), flags_.end());
  one.pid = Spawn(command, fmt::format("{}/m{}.log", folder_.path(), member));
}

}  // namespace millrace::cluster::testing
