# Every third-party library, each from a Debian 12 package that scripts/setup installs.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(hwy 1.0.3 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(yaml-cpp 0.7 REQUIRED)
find_package(prometheus-cpp REQUIRED CONFIG)  # Debian's file states no version
find_package(Boost 1.81 REQUIRED)  # headers only: Asio and Beast
# Control messages between machines. Debian's protobuf comes with CMake's module alone, gRPC with
# targets that name protobuf's, zlib's and c-ares'.
find_package(Protobuf 3.21 REQUIRED MODULE)
find_package(ZLIB REQUIRED)
find_package(gRPC 1.51 REQUIRED CONFIG)
find_package(CURL 7.88 REQUIRED)  # the HTTP client of tools and tests
find_package(SQLite3 3.40 REQUIRED)  # the embedded store of a cluster
# etcd's own .proto files; scripts/setup unpacks Debian's golang-etcd-server-dev into build/etcd.
find_path(ETCD_PROTO_FOLDER etcd/etcdserver/etcdserverpb/rpc.proto NO_DEFAULT_PATH
  PATHS ${CMAKE_SOURCE_DIR}/build/etcd/usr/share/gocode/src/go.etcd.io
        /usr/share/gocode/src/go.etcd.io)
if(NOT ETCD_PROTO_FOLDER)
  message(STATUS "Without etcd: its .proto files are not in build/etcd (scripts/setup)")
endif()
find_package(PkgConfig REQUIRED)
pkg_check_modules(NUMA REQUIRED IMPORTED_TARGET numa>=2.0)  # which CPUs and memory are near
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc>=2.10)  # mixed-integer programs of the planner
if(MILLRACE_TESTS)
  find_package(GTest 1.12 QUIET)
  find_package(rapidcheck QUIET)
  if(NOT GTest_FOUND OR NOT rapidcheck_FOUND)
    message(STATUS "Without tests: GoogleTest or RapidCheck is not installed (scripts/setup test)")
    set(MILLRACE_TESTS OFF)
  endif()
endif()
if(MILLRACE_TESTS)
  enable_testing()
  find_program(ETCD_PROGRAM etcd)  # the store's tests start it
endif()
