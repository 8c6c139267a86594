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
find_package(PkgConfig REQUIRED)
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc>=2.10)  # mixed-integer programs of the planner
if(MILLRACE_TESTS)
  enable_testing()
  find_package(GTest 1.12 REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()
