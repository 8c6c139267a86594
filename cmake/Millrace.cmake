# Functions every folder uses: millrace_library, millrace_proto, millrace_test, millrace_fuzz.
# A folder states its sources and its dependencies; tests/structure/check_layers.py holds the levels.

set(MILLRACE_BATCH 1 CACHE STRING "How many sources are compiled together; 1: each alone")
option(MILLRACE_WERROR "Warnings are errors" OFF)

set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer" CACHE STRING "" FORCE)
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer" CACHE STRING "" FORCE)

# What MR_GUARDED_BY and its neighbours (base/mutex.h) state is checked wherever clang compiles.
set(MILLRACE_THREAD_SAFETY -Wthread-safety -Wthread-safety-beta
  -Werror=thread-safety -Werror=thread-safety-beta)

add_library(millrace_options INTERFACE)
target_include_directories(millrace_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
target_compile_options(millrace_options INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # g++ 12 warns of its own inlining
  "$<$<CXX_COMPILER_ID:Clang>:${MILLRACE_THREAD_SAFETY}>"
  -fno-strict-aliasing
  $<$<CONFIG:Release>:-fstack-protector-strong>
  $<$<BOOL:${MILLRACE_WERROR}>:-Werror>)
target_link_options(millrace_options INTERFACE $<$<CONFIG:Release>:-s>)
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_options INTERFACE
    -fsanitize=${MILLRACE_SANITIZE} -fno-sanitize-recover=all
    # The check of dynamic types opens a pipe to see whether memory can be read, so it fails where
    # a test has used up all descriptors. AddressSanitizer finds the dead objects it would find.
    -fno-sanitize=vptr)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
  target_compile_definitions(millrace_options INTERFACE MILLRACE_SANITIZED=1)
endif()
if(MILLRACE_FUZZ)
  # The fuzzers are led by what they reach of the libraries, not of their own few lines alone.
  target_compile_options(millrace_options INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(millrace_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
find_program(LLD_PROGRAM ld.lld)
if(LLD_PROGRAM)
  target_link_options(millrace_options INTERFACE -fuse-ld=lld)
endif()

# The sources that the program does not reach yet. They are not batched with others, so that the
# linker leaves them out and tests/structure/check_reach.py can tell.
set(MILLRACE_UNREACHED_LIST ${CMAKE_SOURCE_DIR}/tests/structure/unreached.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MILLRACE_UNREACHED_LIST})
file(STRINGS ${MILLRACE_UNREACHED_LIST} MILLRACE_UNREACHED REGEX "^src/")
list(TRANSFORM MILLRACE_UNREACHED REPLACE " .*" "")

# Sets `out` to files that each include MILLRACE_BATCH of the sources, so that a batch reads the
# headers it shares once.
function(millrace_batches out target)
  if(MILLRACE_BATCH LESS 2)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(reached)
  set(unreached)
  foreach(source ${ARGN})
    if("${folder}/${source}" IN_LIST MILLRACE_UNREACHED)
      list(APPEND unreached ${source})
    else()
      list(APPEND reached ${source})
    endif()
  endforeach()
  millrace_write_batches(reached_files ${target} ${folder} ${reached})
  millrace_write_batches(unreached_files ${target}_unreached ${folder} ${unreached})
  set(${out} ${reached_files} ${unreached_files} PARENT_SCOPE)
endfunction()

# The sources are included relative to src/ or to the tree, never by an absolute path, so that the
# compiler cache knows a batch again in another clone.
function(millrace_write_batches out name folder)
  set(sources ${ARGN})
  if(NOT sources)
    set(${out} "" PARENT_SCOPE)
    return()
  endif()
  list(LENGTH sources count)
  math(EXPR batches "(${count} + ${MILLRACE_BATCH} - 1) / ${MILLRACE_BATCH}")
  math(EXPR size "(${count} + ${batches} - 1) / ${batches}")  # batches of about the same length
  set(files)
  set(content)
  set(taken 0)
  foreach(source ${sources})
    string(APPEND content "#include \"${folder}/${source}\"\n")
    math(EXPR taken "${taken} + 1")
    math(EXPR full "${taken} % ${size}")
    if(full EQUAL 0 OR taken EQUAL count)
      set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_batch${taken}.cc)
      file(CONFIGURE OUTPUT ${file} CONTENT "${content}" @ONLY)
      list(APPEND files ${file})
      set(content)
    endif()
  endforeach()
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# Of code that is never hot (commands, tests, what a generator wrote): it compiles faster, and what it
# calls is optimised all the same.
set(MILLRACE_COLD $<$<CONFIG:Release>:-O1>)

# millrace_library(NAME kv SOURCES a.cc ... DEPS base core EXTERNAL OpenSSL::Crypto ...)
# The library is named millrace_<NAME>; headers lie beside the sources. ALONE: its sources cannot be
# compiled in batches. COLD: it is never hot; COLD_SOURCES: these of its sources are not.
function(millrace_library)
  cmake_parse_arguments(ARG "ALONE;COLD" "NAME" "SOURCES;COLD_SOURCES;DEPS;EXTERNAL" ${ARGN})
  set(target millrace_${ARG_NAME})
  list(TRANSFORM ARG_DEPS PREPEND millrace_)
  if(ARG_SOURCES)
    set(sources ${ARG_SOURCES})
    if(NOT ARG_ALONE)
      millrace_batches(sources ${target} ${ARG_SOURCES})
    endif()
    if(ARG_COLD_SOURCES)
      millrace_batches(cold_sources ${target}_cold ${ARG_COLD_SOURCES})
      set_source_files_properties(${cold_sources} PROPERTIES COMPILE_OPTIONS "${MILLRACE_COLD}")
    endif()
    add_library(${target} STATIC ${sources} ${cold_sources})
    target_link_libraries(${target} PUBLIC millrace_options ${ARG_DEPS} ${ARG_EXTERNAL})
    if(ARG_COLD)
      target_compile_options(${target} PRIVATE ${MILLRACE_COLD})
    endif()
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE millrace_options ${ARG_DEPS} ${ARG_EXTERNAL})
  endif()
endfunction()

# millrace_proto(NAME wire_proto PROTOS a.proto ... DEPS ...): messages and gRPC services in C++,
# generated into the build folder; included as "<folder>/a.pb.h" and, for a file with a service,
# "<folder>/a.grpc.pb.h". DEPS: where imported messages come from. What others wrote the generator of
# is compiled without our warnings, and its headers are the system's.
function(millrace_proto)
  cmake_parse_arguments(ARG "" "NAME" "PROTOS;DEPS" ${ARGN})
  set(root ${CMAKE_BINARY_DIR}/generated)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
  file(MAKE_DIRECTORY ${root}/${folder})
  list(TRANSFORM ARG_DEPS PREPEND millrace_)
  set(libraries protobuf::libprotobuf)
  set(sources)
  foreach(proto ${ARG_PROTOS})
    string(REGEX REPLACE "\\.proto$" "" base ${folder}/${proto})
    set(outputs ${root}/${base}.pb.cc ${root}/${base}.pb.h)
    set(grpc)
    file(STRINGS ${proto} services REGEX "^service ")
    if(services)
      list(APPEND outputs ${root}/${base}.grpc.pb.cc ${root}/${base}.grpc.pb.h)
      set(grpc --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> --grpc_out=${root})
      list(APPEND libraries gRPC::grpc++)
    endif()
    add_custom_command(OUTPUT ${outputs}
      COMMAND protobuf::protoc --proto_path=${CMAKE_SOURCE_DIR}/src --cpp_out=${root} ${grpc}
        ${CMAKE_SOURCE_DIR}/src/${folder}/${proto}
      DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/${proto}
      COMMENT "Generating ${base}.pb.h" VERBATIM)
    list(APPEND sources ${outputs})
  endforeach()
  set(target millrace_${ARG_NAME})
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} SYSTEM PUBLIC ${root})
  target_compile_options(${target} PRIVATE -w ${MILLRACE_COLD})
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} ${libraries})
  target_link_libraries(${target} PRIVATE millrace_options)
endfunction()

# millrace_etcd_proto(etcd_proto): the part of etcd's API that the store uses, from etcd's own
# files; included as "etcd/rpc.grpc.pb.h".
function(millrace_etcd_proto name)
  set(root ${CMAKE_BINARY_DIR}/generated_etcd)
  set(script ${CMAKE_SOURCE_DIR}/cmake/etcd_protos.py)
  set(outputs ${root}/etcd/kv.pb.cc ${root}/etcd/kv.pb.h ${root}/etcd/rpc.pb.cc
    ${root}/etcd/rpc.pb.h ${root}/etcd/rpc.grpc.pb.cc ${root}/etcd/rpc.grpc.pb.h)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_custom_command(OUTPUT ${outputs}
    COMMAND Python3::Interpreter ${script} ${ETCD_PROTO_FOLDER} ${root}/etcd
    COMMAND protobuf::protoc --proto_path=${root} --cpp_out=${root}
      --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> --grpc_out=${root}
      ${root}/etcd/kv.proto ${root}/etcd/rpc.proto
    DEPENDS ${script}
    COMMENT "Generating etcd/rpc.pb.h" VERBATIM)
  add_library(millrace_${name} STATIC ${outputs})
  target_include_directories(millrace_${name} SYSTEM PUBLIC ${root})
  target_compile_options(millrace_${name} PRIVATE -w ${MILLRACE_COLD})
  target_link_libraries(millrace_${name} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
  target_link_libraries(millrace_${name} PRIVATE millrace_options)
endfunction()

# millrace_test(NAME kv_test SOURCES a_test.cc ... DEPS kv [EXTERNAL ...] [LABEL fast|full]
#               [TIMEOUT seconds] [ARGS ...] [PURE] [FOREIGN_THREADS])
# One GoogleTest binary. PURE: it starts no thread, so the thread sanitizer has nothing to see and
# does not build it. FOREIGN_THREADS: its threads are synchronized by a library that is not
# instrumented (gRPC), where the thread sanitizer sees nothing but false alarms. LABEL fast (the default) means: no model file, no network, a few seconds.
function(millrace_test)
  cmake_parse_arguments(ARG "PURE;FOREIGN_THREADS" "NAME;LABEL;TIMEOUT" "SOURCES;DEPS;EXTERNAL;ARGS" ${ARGN})
  if(NOT MILLRACE_TESTS OR
     ((ARG_PURE OR ARG_FOREIGN_THREADS) AND MILLRACE_SANITIZE STREQUAL "thread"))
    return()
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  list(TRANSFORM ARG_DEPS PREPEND millrace_)
  millrace_batches(sources ${ARG_NAME} ${ARG_SOURCES})
  add_executable(${ARG_NAME} ${sources})
  target_link_libraries(${ARG_NAME} PRIVATE
    ${ARG_DEPS} millrace_source_path ${ARG_EXTERNAL} GTest::gtest_main)
  target_compile_options(${ARG_NAME} PRIVATE ${MILLRACE_COLD})
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# millrace_fuzz(NAME json_fuzz SOURCES json_fuzz.cc DEPS base): a libFuzzer target in fuzz/.
function(millrace_fuzz)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;EXTERNAL" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND millrace_)
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} ${ARG_EXTERNAL})
  target_link_options(${ARG_NAME} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${ARG_NAME})
endfunction()
