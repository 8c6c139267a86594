#!/usr/bin/env python3
"""Fails when a build with clang would accept code that reads a guarded member without its lock.

Usage: check_guards.py FLAG...   the flags that such builds compile with (cmake/Millrace.cmake)
"""
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLANG = "clang++-14"

BEGIN = """
#include "base/mutex.h"
class Counter {
  void AddLocked() MR_REQUIRES(mutex_) { ++count_; }
  void AddUnlocked() MR_EXCLUDES(mutex_) {}
  millrace::Mutex first_ MR_ACQUIRED_BEFORE(mutex_);
  millrace::Mutex mutex_;
  millrace::CondVar changed_;
  int count_ MR_GUARDED_BY(mutex_) = 0;
  int* pointee_ MR_PT_GUARDED_BY(mutex_) = nullptr;
 public:
"""
ACCEPTED = {
    "a lock for the scope": "millrace::MutexLock lock(mutex_); ++count_; ++*pointee_; AddLocked();",
    "a lock that is given back": "millrace::MutexLock lock(mutex_); ++count_; lock.unlock();"
                                 " AddUnlocked(); lock.lock(); ++count_;",
    "a wait": "millrace::MutexLock lock(mutex_);"
              " changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return count_ > 0; });",
    "the order of two locks": "millrace::MutexLock a(first_); millrace::MutexLock b(mutex_);",
}
REFUSED = {
    "no lock": "++count_;",
    "no lock for what is pointed to": "++*pointee_;",
    "the wrong lock": "millrace::MutexLock lock(first_); ++count_;",
    "a lock given back before": "millrace::MutexLock lock(mutex_); lock.unlock(); ++count_;",
    "a function that requires the lock": "AddLocked();",
    "a function that must not have the lock": "millrace::MutexLock lock(mutex_); AddUnlocked();",
    "a predicate without MR_REQUIRES": "millrace::MutexLock lock(mutex_);"
                                       " changed_.wait(lock, [this] { return count_ > 0; });",
    "the wrong order": "millrace::MutexLock b(mutex_); millrace::MutexLock a(first_);",
}


def compile_all(flags, bodies):
    """The exit status of the compiler, and what it says of each body."""
    functions = [f'#line 1 "{name}"\n  void F{i}() {{ {body} }}\n'
                 for i, (name, body) in enumerate(bodies.items())]
    done = subprocess.run(
        [CLANG, "-std=c++20", f"-I{ROOT / 'src'}", "-fsyntax-only", *flags, "-x", "c++", "-"],
        input=BEGIN + "".join(functions) + "};\n", text=True, capture_output=True)
    said = {name: [line for line in done.stderr.splitlines()
                   if line.startswith(f"{name}:1:") and "error: " in line] for name in bodies}
    return done, said


def main(flags):
    if shutil.which(CLANG) is None:
        sys.exit(f"{CLANG} is missing; scripts/setup test installs it")
    done, _ = compile_all(flags, ACCEPTED)
    problems = [f"refused, but right:\n{done.stderr}"] if done.returncode or done.stderr else []
    _, said = compile_all(flags, REFUSED)
    for name, lines in said.items():
        if not any("-Wthread-safety" in line for line in lines):
            problems.append(f"accepted, but wrong: {name} {lines}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main(sys.argv[1:])
