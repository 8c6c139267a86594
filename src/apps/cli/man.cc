#include "apps/cli/man.h"

#include <fmt/format.h>

#include "apps/cli/help.h"

namespace millrace::apps {
namespace {

// Escapes text for roff: no control lines, no escapes, real hyphens.
std::string Roff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '~') {
      out += "\\(ti";
    } else {
      out += c;
    }
    line_start = c == '\n';
  }
  return out;
}

void AppendOptions(const Command& command, std::string& out) {
  for (const auto& [group, options] : OptionGroups(command)) {
    out += fmt::format(".PP\n{}:\n", Roff(group));
    for (const Option* option : options) {
      out += fmt::format(".TP\n\\fB{}\\fR\n{}.\n", Roff(OptionSyntax(*option)),
                         Roff(OptionText(*option)));
    }
  }
}

void AppendCommand(const Command& command, const std::string& path, std::string& out) {
  if (command.hidden) return;
  if (!command.IsGroup()) {
    out += fmt::format(
        ".SS \"{}\"\n{}\n", Roff(UsageLine(command, path)),
        Roff(command.description.empty() ? command.summary + "." : command.description));
    for (const Example& example : command.examples) {
      out += fmt::format(".PP\n{}:\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", Roff(example.what),
                         Roff(example.command));
    }
    AppendOptions(command, out);
  }
  for (const auto& child : command.children) {
    AppendCommand(*child, path + " " + child->name, out);
  }
}

}  // namespace

std::string FormatManPage(const Command& root, const std::string& version) {
  std::string out = fmt::format(".TH MILLRACE 1 \"\" \"millrace {}\" \"User Commands\"\n", version);
  out += fmt::format(".SH NAME\nmillrace \\- {}\n", Roff(root.summary));
  out += ".SH SYNOPSIS\n.B millrace\n.I COMMAND\n[\\fIOPTIONS\\fR]\n";
  out += ".SH DESCRIPTION\n" + Roff(root.description) + "\n.SH COMMANDS\n";
  AppendCommand(root, root.name, out);
  out +=
      ".SH ENVIRONMENT\nEvery option can be set as \\fBMILLRACE_\\fR\\fINAME\\fR: the option's "
      "name in upper case with \\(lq_\\(rq for \\(lq\\-\\(rq. Lists are separated by commas.\n"
      ".PP\n\\fBHF_HOME\\fR: where a model given as ORG/NAME is looked up (default: "
      "\\(ti/.cache/huggingface).\n.PP\n\\fBNO_COLOR\\fR: when set, no colours and no moving "
      "progress bar.\n";
  out +=
      ".SH FILES\nThe YAML file of \\fB\\-\\-config\\fR maps option names to values or lists of "
      "values. The command line wins over the environment, the environment over the file.\n";
  out +=
      ".SH EXIT STATUS\n.TP\n.B 0\nDone.\n.TP\n.B 1\nThe work failed; one line on standard error "
      "says why.\n.TP\n.B 2\nThe command line, the environment or the config file is wrong.\n"
      ".TP\n.B 130\nInterrupted a second time before the work had ended.\n";
  return out;
}

}  // namespace millrace::apps
