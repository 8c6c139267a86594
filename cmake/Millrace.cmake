# Functions every folder uses: millrace_library, millrace_test, millrace_fuzz.
# A folder states its sources and its dependencies; tests/check_layers.py holds the levels.

option(MILLRACE_WERROR "Warnings are errors" OFF)

set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer" CACHE STRING "" FORCE)
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer" CACHE STRING "" FORCE)

add_library(millrace_options INTERFACE)
target_include_directories(millrace_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(millrace_options INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # g++ 12 warns of its own inlining
  -fno-strict-aliasing
  $<$<CONFIG:Release>:-g1 -fstack-protector-strong>
  $<$<BOOL:${MILLRACE_WERROR}>:-Werror>)
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_options INTERFACE
    -fsanitize=${MILLRACE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
  target_compile_definitions(millrace_options INTERFACE MILLRACE_SANITIZED=1)
endif()
find_program(LLD_PROGRAM ld.lld)
if(LLD_PROGRAM)
  target_link_options(millrace_options INTERFACE -fuse-ld=lld)
endif()

# millrace_library(NAME kv SOURCES a.cc ... DEPS base core EXTERNAL OpenSSL::Crypto ...)
# The library is named millrace_<NAME>; headers lie beside the sources.
function(millrace_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;EXTERNAL" ${ARGN})
  set(target millrace_${ARG_NAME})
  list(TRANSFORM ARG_DEPS PREPEND millrace_)
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    target_link_libraries(${target} PUBLIC millrace_options ${ARG_DEPS} ${ARG_EXTERNAL})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE millrace_options ${ARG_DEPS} ${ARG_EXTERNAL})
  endif()
endfunction()

# millrace_test(NAME kv_test SOURCES a_test.cc ... DEPS kv [EXTERNAL ...] [LABEL fast|full]
#               [TIMEOUT seconds] [ARGS ...] [PURE])
# One GoogleTest binary. PURE: it starts no thread, so the thread sanitizer has nothing to see and
# does not build it. LABEL fast (the default) means: no model file, no network, a few seconds.
function(millrace_test)
  cmake_parse_arguments(ARG "PURE" "NAME;LABEL;TIMEOUT" "SOURCES;DEPS;EXTERNAL;ARGS" ${ARGN})
  if(NOT MILLRACE_TESTS OR (ARG_PURE AND MILLRACE_SANITIZE STREQUAL "thread"))
    return()
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  list(TRANSFORM ARG_DEPS PREPEND millrace_)
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} ${ARG_EXTERNAL} GTest::gtest_main)
  target_compile_definitions(${ARG_NAME} PRIVATE
    MILLRACE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" MILLRACE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# millrace_fuzz(NAME json_fuzz SOURCES json_fuzz.cc DEPS base): a libFuzzer target in fuzz/.
function(millrace_fuzz)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;EXTERNAL" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND millrace_)
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} ${ARG_EXTERNAL})
  target_compile_options(${ARG_NAME} PRIVATE -fsanitize=fuzzer)
  target_link_options(${ARG_NAME} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${ARG_NAME})
endfunction()
