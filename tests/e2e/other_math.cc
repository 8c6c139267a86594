// A C library whose functions round differently: each result is one unit above what the real one
// says. To be preloaded (LD_PRELOAD): a program whose numbers depend on these functions says other
// numbers then.
#include <dlfcn.h>

#include <cmath>
#include <limits>

namespace {

template <typename F>
F* Real(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

template <typename T>
T Above(T x) {
  return std::nextafter(x, std::numeric_limits<T>::infinity());
}

}  // namespace

// NOLINTBEGIN: the names and signatures are those of the C library.
#define OF_ONE(name, T) \
  extern "C" T name(T x) { return Above(Real<T(T)>(#name)(x)); }
#define OF_TWO(name, T) \
  extern "C" T name(T x, T y) { return Above(Real<T(T, T)>(#name)(x, y)); }
#define OF_TURN(name, T)                   \
  extern "C" void name(T x, T* s, T* c) {  \
    Real<void(T, T*, T*)>(#name)(x, s, c); \
    *s = Above(*s), *c = Above(*c);        \
  }

OF_ONE(sin, double)
OF_ONE(cos, double)
OF_ONE(tan, double)
OF_ONE(exp, double)
OF_ONE(exp2, double)
OF_ONE(log, double)
OF_ONE(tanh, double)
OF_ONE(erfc, double)
OF_TWO(pow, double)
OF_TURN(sincos, double)
OF_ONE(sinf, float)
OF_ONE(cosf, float)
OF_ONE(tanf, float)
OF_ONE(expf, float)
OF_ONE(exp2f, float)
OF_ONE(logf, float)
OF_ONE(tanhf, float)
OF_ONE(erfcf, float)
OF_TWO(powf, float)
OF_TURN(sincosf, float)
// NOLINTEND
