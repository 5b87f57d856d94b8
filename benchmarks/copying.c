/* A copy whose stores pass by the caches, to compare with memcpy(3): benchmarks/bulksteps.py compiles it. */

#include <emmintrin.h>
#include <stddef.h>

/* to must be aligned to 64 bytes, and n a multiple of 64. */
void copy_past_caches(char *to, const char *from, size_t n)
{
    for (size_t at = 0; at < n; at += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(from + at));
        __m128i b = _mm_loadu_si128((const __m128i *)(from + at + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + at + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + at + 48));
        _mm_stream_si128((__m128i *)(to + at), a);
        _mm_stream_si128((__m128i *)(to + at + 16), b);
        _mm_stream_si128((__m128i *)(to + at + 32), c);
        _mm_stream_si128((__m128i *)(to + at + 48), d);
    }
    /* Such stores are not in program order with others: what tells of the bytes comes after them. */
    _mm_sfence();
}
