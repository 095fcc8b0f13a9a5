// What the shared text needs, in CUDA.  MLX puts its own prelude (cuda_fp16, cuda_bf16) before this.
#define INLINE __device__ __forceinline__
#define DEVICE
#define THREAD
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define BARRIER() __syncthreads()
// Plain loads on purpose.  Read-only ones (__ldg) may cross a barrier, and the compiler moves them behind it, next to
// where their values are used: then nothing is on its way while the block waits.
#define LOAD(pointer) (*(pointer))
#define SHUFFLE_XOR(value, distance) __shfl_xor_sync(0xffffffffu, value, distance)

typedef unsigned int uint;
typedef __nv_bfloat16 brain;
typedef __half half_t;

INLINE float as_float(uint bits) {
    return __uint_as_float(bits);
}

// One instruction.  Left to itself the compiler makes two of them, each with a constant in it.
INLINE uint masked_or(uint value, uint mask, uint more) {
#ifdef __CUDACC__
    uint result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(value), "r"(mask), "r"(more));
    return result;
#else
    return (value & mask) | more;
#endif
}

INLINE float2 halves(uint bits) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

INLINE float exponential(float v) {
    return expf(v);
}

INLINE uint4 load_quad(const uint* p) {
    return *reinterpret_cast<const uint4*>(p);
}

INLINE uint2 load_pair(const uint* p) {
    return *reinterpret_cast<const uint2*>(p);
}
