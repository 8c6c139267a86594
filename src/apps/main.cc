#include <cstdio>

int main() {
  std::printf("millrace 0.1.0\n");
  return 0;
}
