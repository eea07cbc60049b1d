// What a kernel's body for mx.fast.metal_kernel takes for granted, in C++: empty address spaces,
// vectors, 16-bit floats, and a SIMD-group whose lanes are coroutines, so that they are in lock step.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>
#include <ucontext.h>

#define device
#define constant
#define thread

using std::fma;
using std::min;
typedef uint32_t uint;
struct uint3 { uint x, y, z; };
template <typename T, int N> struct vec {
    T values[N];
    T operator[](uint i) const { return values[i]; }
};
typedef vec<uint, 4> uint4;
typedef _Float16 half;
struct bfloat {
    uint16_t bits;
    bfloat() = default;
    explicit bfloat(float value) {  // to the nearest, of two the even one
        uint32_t word;
        std::memcpy(&word, &value, 4);
        bits = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    }
    explicit operator float() const {
        uint32_t word = uint32_t(bits) << 16;
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
};

const int LANES = 32, STACK = 1 << 16;
static ucontext_t outside, lanes[LANES];
static char stacks[LANES][STACK];
static int current;
static float exchanged[2][LANES];
static std::function<void()> body;

// Give one's value, and take that of another lane once all have given theirs: lanes run in turn, so
// when this one is resumed, all others have stored theirs. Two buffers: some are one call ahead.
static float simd_shuffle_xor(float value, uint mask) {
    static int calls[LANES];
    int lane = current, buffer = calls[lane]++ % 2;
    exchanged[buffer][lane] = value;
    swapcontext(&lanes[lane], &outside);
    return exchanged[buffer][lane ^ mask];
}

static bool ended[LANES];
static void run_lane() {
    body();
    ended[current] = true;
}

static void run_simdgroup(std::function<void()> function) {
    body = function;
    for (int lane = 0; lane < LANES; ++lane) {
        getcontext(&lanes[lane]);
        lanes[lane].uc_stack.ss_sp = stacks[lane];
        lanes[lane].uc_stack.ss_size = STACK;
        lanes[lane].uc_link = &outside;
        makecontext(&lanes[lane], run_lane, 0);
        ended[lane] = false;
    }
    for (bool left = true; left;) {
        left = false;
        for (current = 0; current < LANES; ++current) {
            if (!ended[current]) {
                swapcontext(&outside, &lanes[current]);
                left = left || !ended[current];
            }
        }
    }
}

struct Arguments {
    int R, OUT, BITS, GROUP, rows, inputs, outputs;
};

// KERNELS
