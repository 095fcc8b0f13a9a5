// Packed weights in registers, and their products with x.  Needs the macros of metal.h or cuda.h.
//
// A unit is UNIT consecutive columns of one row.  UNIT values of BITS bits are UNIT * BITS / 32 whole words: for 32 values
// exactly BITS words, whatever the width, so that no value of a unit lies outside its words.
enum { AFFINE, MXFP4, MXFP8, NVFP4, PLAIN_FLOAT32, PLAIN_BFLOAT16, PLAIN_FLOAT16 };
enum { NO_ACTIVATION, SWIGLU, CLIPPED_SWIGLU };

// 1 + value / 2^BITS: the value becomes the top of the mantissa of a float in [1, 2).  That is a shift and one logic
// operation where a conversion from integer is slower; what the 1 adds is taken off once per unit, with the sum of x.
template <int BITS>
INLINE float lifted(const THREAD uint* words, int i) {
    const int from = i * BITS % 32;
    const int to = 23 - BITS;
    uint v = words[i * BITS / 32];
    if (from + BITS > 32) {
        v = (v >> from | words[i * BITS / 32 + 1] << (32 - from)) << to;
    } else if (from > to) {
        v = v >> (from - to);
    } else {
        v = v << (to - from);
    }
    return as_float(masked_or(v, ((1u << BITS) - 1u) << to, 0x3f800000u));
}

// sum over i of x[i] * value i, up to the factor that scale_of has
template <int MODE, int BITS, int COUNT>
INLINE float products(const THREAD uint* words, const THREAD float* x) {
    float sum = 0.0f;
    if (MODE == AFFINE) {
        UNROLL
        for (int i = 0; i < COUNT; i++) {
            sum += x[i] * lifted<(BITS <= 8 ? BITS : 8)>(words, i);
        }
    } else if (MODE == MXFP4 || MODE == NVFP4) {
        // The bits of e2m1 are the top bits of a half that is 2^14 times smaller, subnormal values included.
        UNROLL
        for (int i = 0; i < COUNT; i += 8) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                const uint v = words[i / 8] >> (4 * j);
                const float2 pair = halves((v & 0x00070007u) << 9 | (v & 0x00080008u) << 12);
                sum += x[i + j] * pair.x;
                sum += x[i + j + 4] * pair.y;
            }
        }
    } else if (MODE == MXFP8) {
        // e4m3: the same, 2^8 times smaller.
        UNROLL
        for (int i = 0; i < COUNT; i += 4) {
            UNROLL
            for (int j = 0; j < 2; j++) {
                const uint v = words[i / 4] >> (8 * j);
                const float2 pair = halves((v & 0x007f007fu) << 7 | (v & 0x00800080u) << 8);
                sum += x[i + j] * pair.x;
                sum += x[i + j + 2] * pair.y;
            }
        }
    } else if (MODE == PLAIN_FLOAT32) {
        UNROLL
        for (int i = 0; i < COUNT; i++) {
            sum += x[i] * as_float(words[i]);
        }
    } else {
        UNROLL
        for (int i = 0; i < COUNT; i += 2) {
            const uint v = words[i / 2];
            if (MODE == PLAIN_BFLOAT16) {
                sum += x[i] * as_float(v << 16);
                sum += x[i + 1] * as_float(v & 0xffff0000u);
            } else {
                const float2 pair = halves(v);
                sum += x[i] * pair.x;
                sum += x[i + 1] * pair.y;
            }
        }
    }
    return sum;
}

INLINE uint byte_of(uint8_t scale) {
    return scale;
}

template <typename S>
INLINE uint byte_of(S) {
    return 0;
}

template <int MODE, int BITS, typename S>
INLINE float scale_of(S scale) {
    if (MODE == AFFINE) {
        return float(scale) * float(1 << (BITS & 15));
    }
    const uint byte = byte_of(scale);
    if (MODE == MXFP4) {
        return as_float(byte << 23) * 16384.0f;
    }
    if (MODE == MXFP8) {
        return as_float(byte << 23) * 256.0f;
    }
    if (MODE == NVFP4) {
        return halves((byte & 0x7fu) << 7 | (byte & 0x80u) << 8).x * (256.0f * 16384.0f);
    }
    return 1.0f;
}

template <int COUNT>
INLINE void load_words(const DEVICE uint* p, THREAD uint* words) {
    if (COUNT % 4 == 0) {
        UNROLL
        for (int i = 0; i < COUNT; i += 4) {
            const uint4 v = load_quad(p + i);
            words[i] = v.x;
            words[i + 1] = v.y;
            words[i + 2] = v.z;
            words[i + 3] = v.w;
        }
    } else if (COUNT % 2 == 0) {
        UNROLL
        for (int i = 0; i < COUNT; i += 2) {
            const uint2 v = load_pair(p + i);
            words[i] = v.x;
            words[i + 1] = v.y;
        }
    } else {
        UNROLL
        for (int i = 0; i < COUNT; i++) {
            words[i] = LOAD(p + i);
        }
    }
}

// One unit of TILE rows, as loaded: nothing is done with it before it is needed, so that many loads are on their way.
template <int MODE, int BITS, int GROUP, int UNIT, int TILE, int C, typename S>
struct Unit {
    enum { WORDS = UNIT * BITS / 32, SPAN = GROUP < UNIT ? GROUP : UNIT, SPANS = UNIT / SPAN, PLAIN = MODE >= PLAIN_FLOAT32 };

    uint words[TILE][WORDS];
    S scales[TILE][SPANS];
    S biases[TILE];

    // weight [N, C * BITS / 32]  scale, bias [N, C / GROUP]  rows [TILE] of these
    template <typename P>
    INLINE void load(const DEVICE uint* weight, P scale, P bias, const THREAD uint* rows, uint unit) {
        UNROLL
        for (int t = 0; t < TILE; t++) {
            load_words<WORDS>(weight + rows[t] * (C * BITS / 32) + unit * WORDS, words[t]);
            if (!PLAIN) {
                const uint at = rows[t] * (C / GROUP) + unit * UNIT / GROUP;
                UNROLL
                for (int s = 0; s < SPANS; s++) {
                    scales[t][s] = LOAD(scale + at + s);
                }
                if (MODE == AFFINE) {
                    biases[t] = LOAD(bias + at);
                }
            }
        }
    }

    // x [UNIT], total = sum of x; sums [TILE] += rows . x
    INLINE void multiply(const THREAD float* x, float total, THREAD float* sums) const {
        UNROLL
        for (int t = 0; t < TILE; t++) {
            UNROLL
            for (int s = 0; s < SPANS; s++) {
                const float part = products<MODE, BITS, SPAN>(words[t] + s * SPAN * BITS / 32, x + s * SPAN);
                const float factor = PLAIN ? 1.0f : scale_of<MODE, BITS>(scales[t][s]);
                sums[t] += factor * part;
                if (MODE == AFFINE) {
                    sums[t] += (float(biases[t]) - factor) * total;
                }
            }
        }
    }
};

INLINE void load_eight(const DEVICE float* p, THREAD float* v) {
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        const uint4 q = load_quad((const DEVICE uint*)p + i);
        v[i] = as_float(q.x);
        v[i + 1] = as_float(q.y);
        v[i + 2] = as_float(q.z);
        v[i + 3] = as_float(q.w);
    }
}

INLINE void load_eight(const DEVICE brain* p, THREAD float* v) {
    uint words[4];
    load_words<4>((const DEVICE uint*)p, words);
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[2 * i] = as_float(words[i] << 16);
        v[2 * i + 1] = as_float(words[i] & 0xffff0000u);
    }
}

INLINE void load_eight(const DEVICE half_t* p, THREAD float* v) {
    uint words[4];
    load_words<4>((const DEVICE uint*)p, words);
    UNROLL
    for (int i = 0; i < 4; i++) {
        const float2 pair = halves(words[i]);
        v[2 * i] = pair.x;
        v[2 * i + 1] = pair.y;
    }
}

template <int ACTIVATION>
INLINE float activated(float gate, float up) {
    if (ACTIVATION == CLIPPED_SWIGLU) {
        gate = gate < LIMIT ? gate : LIMIT;
        up = up < LIMIT ? (up > -LIMIT ? up : -LIMIT) : LIMIT;
        return gate / (1.0f + exponential(-ALPHA * gate)) * (up + 1.0f);
    }
    return gate / (1.0f + exponential(-gate)) * up;
}
