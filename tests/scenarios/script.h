// Scenario scripts: text files that state commands and what a state machine does then, shared by
// the programs that run them. A script consists of lines: "# ..." is a comment, "> command" is run,
// and every other line is the command's output when the script was last rewritten. One thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

// "add r1 prompt=7 max=4": the words, and the values of the form name=value.
struct Command {
  std::vector<std::string> words;
  std::map<std::string, std::string> values;

  static Command Parse(const std::string& line);
  int Int(const std::string& name, int otherwise) const;
  std::string Text(const std::string& name) const;
  std::string Word(size_t i) const { return i < words.size() ? words[i] : ""; }
  // The words from `i` on, with a space between them.
  std::string Rest(size_t i) const;
};

class Scenario {
 public:
  virtual ~Scenario() = default;
  // Runs one command. Returns the lines to print below it.
  virtual std::vector<std::string> Run(const std::string& line) = 0;
};

// The main function of a program that is called with [--rewrite] FILE...: runs each script in a
// new scenario and reports where its output differs from the file, or rewrites the file. Returns
// the exit code.
int RunScripts(int argc, char** argv, const std::function<std::unique_ptr<Scenario>()>& start);

}  // namespace millrace
