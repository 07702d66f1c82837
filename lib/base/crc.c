#include "base/crc.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CRC32C_POLY 0x82f63b78u            /* reflected Castagnoli */
#define CRC64NVME_POLY 0x9a6c9329ac4bc9b5u /* reflected, NVM Command Set 1.0 section 5.2.1.3.4 */

/* Slice-by-8 (Kounavis, Berry: "A Systematic Approach to Building High Performance Software-based CRC Generators"). */
static uint32_t table32[8][256];
static uint64_t table64[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void tables_make(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint32_t c32 = i;
        uint64_t c64 = i;
        for (int bit = 0; bit < 8; bit++) {
            c32 = c32 >> 1 ^ (CRC32C_POLY & -(c32 & 1));
            c64 = c64 >> 1 ^ (CRC64NVME_POLY & -(c64 & 1));
        }
        table32[0][i] = c32;
        table64[0][i] = c64;
    }
    for (unsigned i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) {
            table32[k][i] = table32[k - 1][i] >> 8 ^ table32[0][table32[k - 1][i] & 0xff];
            table64[k][i] = table64[k - 1][i] >> 8 ^ table64[0][table64[k - 1][i] & 0xff];
        }
}

static uint64_t load64(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

uint32_t crc32c_portable(uint32_t crc, const void *bytes, size_t len)
{
    (void)pthread_once(&tables_once, tables_make);
    const uint8_t *p = bytes;
    uint32_t c = ~crc;
    for (; len >= 8; len -= 8, p += 8) {
        uint64_t w = load64(p) ^ c;
        c = table32[7][w & 0xff] ^ table32[6][w >> 8 & 0xff] ^ table32[5][w >> 16 & 0xff] ^ table32[4][w >> 24 & 0xff] ^
            table32[3][w >> 32 & 0xff] ^ table32[2][w >> 40 & 0xff] ^ table32[1][w >> 48 & 0xff] ^ table32[0][w >> 56];
    }
    for (; len > 0; len--)
        c = c >> 8 ^ table32[0][(c ^ *p++) & 0xff];
    return ~c;
}

uint64_t crc64nvme_portable(uint64_t crc, const void *bytes, size_t len)
{
    (void)pthread_once(&tables_once, tables_make);
    const uint8_t *p = bytes;
    uint64_t c = ~crc;
    for (; len >= 8; len -= 8, p += 8) {
        uint64_t w = load64(p) ^ c;
        c = table64[7][w & 0xff] ^ table64[6][w >> 8 & 0xff] ^ table64[5][w >> 16 & 0xff] ^ table64[4][w >> 24 & 0xff] ^
            table64[3][w >> 32 & 0xff] ^ table64[2][w >> 40 & 0xff] ^ table64[1][w >> 48 & 0xff] ^ table64[0][w >> 56];
    }
    for (; len > 0; len--)
        c = c >> 8 ^ table64[0][(c ^ *p++) & 0xff];
    return ~c;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *p, size_t len)
{
    uint64_t c = ~crc;
    for (; len >= 8; len -= 8, p += 8)
        c = _mm_crc32_u64(c, load64(p));
    uint32_t c32 = (uint32_t)c;
    for (; len > 0; len--)
        c32 = _mm_crc32_u8(c32, *p++);
    return ~c32;
}

/* x^n modulo the polynomial, in reflected form: what one lane is multiplied by to move it n+1 bits on (the product of two
 * reflected 64-bit numbers stands one bit too low, which the exponent makes up for). */
static uint64_t power64(unsigned n)
{
    uint64_t r = 1ull << 63; /* x^0 */
    while (n-- > 0)
        r = r >> 1 ^ (CRC64NVME_POLY & -(r & 1));
    return r;
}

static uint64_t fold128_low, fold128_high, fold512_low, fold512_high;
static pthread_once_t folds_once = PTHREAD_ONCE_INIT;

static void folds_make(void)
{
    fold128_low = power64(128 + 64 - 1);
    fold128_high = power64(128 - 1);
    fold512_low = power64(512 + 64 - 1);
    fold512_high = power64(512 - 1);
}

__attribute__((target("pclmul,sse4.1"))) static __m128i fold(__m128i x, __m128i k, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Four lanes of 16 bytes are folded forward (Gopal et al.: "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction"); the last 16 bytes, which stand for all that went before, go through the table. */
__attribute__((target("pclmul,sse4.1"))) static uint64_t crc64nvme_clmul(uint64_t crc, const uint8_t *p, size_t len)
{
    (void)pthread_once(&folds_once, folds_make);
    const __m128i k512 = _mm_set_epi64x((long long)fold512_high, (long long)fold512_low);
    const __m128i k128 = _mm_set_epi64x((long long)fold128_high, (long long)fold128_low);
    __m128i lane[4];
    for (int i = 0; i < 4; i++)
        lane[i] = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
    uint64_t state = ~crc;
    lane[0] = _mm_xor_si128(lane[0], _mm_set_epi64x(0, (long long)state));
    for (p += 64, len -= 64; len >= 64; p += 64, len -= 64)
        for (int i = 0; i < 4; i++)
            lane[i] = fold(lane[i], k512, _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)));
    __m128i x = lane[0];
    for (int i = 1; i < 4; i++)
        x = fold(x, k128, lane[i]);
    for (; len >= 16; p += 16, len -= 16)
        x = fold(x, k128, _mm_loadu_si128((const __m128i *)(const void *)p));
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)(void *)rest, x);
    uint64_t c = crc64nvme_portable(~0ull, rest, sizeof(rest)); /* ~0 in is a register of 0 */
    return crc64nvme_portable(c, p, len);
}

#endif

uint32_t crc32c(uint32_t crc, const void *bytes, size_t len)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return crc32c_sse42(crc, bytes, len);
#endif
    return crc32c_portable(crc, bytes, len);
}

uint64_t crc64nvme(uint64_t crc, const void *bytes, size_t len)
{
#if defined(__x86_64__)
    if (len >= 128 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
        return crc64nvme_clmul(crc, bytes, len);
#endif
    return crc64nvme_portable(crc, bytes, len);
}
