// What a kernel sees of the emulator: its place in the grid, barriers, shuffles, numbers of 16 bits.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

// A section of its own, so that the emulator can find it; one block runs at a time, so static is shared enough.
#define SIMT_SHARED static __attribute__((section("simt_shared")))

// The one kernel of a program; its arguments are the addresses of the arrays.
void simt_kernel(void** arguments);

namespace simt {

struct Index {
    unsigned x, y, z;
};

[[noreturn]] void fail(const char* what);
Index thread_index();
Index block_index();
void barrier();
unsigned shuffle_xor(unsigned value, unsigned distance);

inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

struct Brain {
    uint16_t bits;
    Brain() = default;
    explicit Brain(float value) {
        const uint32_t wide = bits_of(value);
        const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
        bits = uint16_t(nan ? 0x7fc0u : (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
    }
    operator float() const { return float_of(uint32_t(bits) << 16); }
};

inline float float_of_half(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | uint32_t(mantissa) << 13);
    const float size = exponent ? ldexpf(float(1024 + mantissa), exponent - 25) : ldexpf(float(mantissa), -24);
    return sign ? -size : size;
}

inline uint16_t half_of_float(float value) {
    const uint16_t sign = uint16_t(bits_of(value) >> 16 & 0x8000u);
    const float size = fabsf(value);
    if (value != value) return 0x7e00u;
    if (size >= 65520.0f) return uint16_t(sign | 0x7c00u);
    int exponent;
    frexpf(size, &exponent);  // size < 2^exponent
    if (exponent < -13) exponent = -13;
    const int mantissa = int(nearbyintf(ldexpf(size, 11 - exponent)));  // ties to even
    // The sum lets a mantissa that was rounded up carry into the exponent; the smallest exponent holds subnormals.
    return uint16_t(sign + ((exponent + 13) << 10) + mantissa);
}

struct Half {
    uint16_t bits;
    Half() = default;
    explicit Half(float value) : bits(half_of_float(value)) {}
    operator float() const { return float_of_half(bits); }
};

inline float shuffle_xor(float value, unsigned distance) {
    return float_of(shuffle_xor(bits_of(value), distance));
}

}  // namespace simt
