/* Attention of short runs (decode tokens, drafts) over a paged KV cache, read where it lies.

   One pass over each row's blocks with a running maximum (Milakov and Gimelshein 2018, "Online normalizer calculation for
   softmax"), block by block, all KV heads of a block together, since they lie side by side. Compiled by native.py, once for
   each type of cache: CACHE_TYPE is float, or uint16_t for bfloat16. Products and sums are float. */

#include <stdint.h>
#include <string.h>

#define MOST_TOKENS 64 /* block sizes above are read in parts */

#ifdef BFLOAT16
static inline float value_of(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}
#else
#define value_of(x) (x)
#endif

/* e^x for x <= 0: 2^n times a polynomial in the rest, |rest| <= ln 2 / 2; relative error below 3e-7. */
static inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = (float)(int32_t)(x * 1.44269504f - 0.5f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* One query head over `tokens` slots of one KV head: sum and acc are scaled to the new maximum and added to. */
static inline __attribute__((always_inline)) void step_of(const float *query, const CACHE_TYPE *keys, const CACHE_TYPE *values, int64_t stride, int tokens, int dim,
                 float *most, float *sum, float *acc) {
    float scores[MOST_TOKENS], top = *most;
    for (int t = 0; t < tokens; t++) {
        const CACHE_TYPE *key = keys + t * stride;
        float dot = 0.0f;
        for (int d = 0; d < dim; d++) dot += query[d] * value_of(key[d]);
        scores[t] = dot;
        top = dot > top ? dot : top;
    }
    float old = exp_of(*most - top), total = *sum * old;
    for (int t = 0; t < tokens; t++) {
        scores[t] = exp_of(scores[t] - top);
        total += scores[t];
    }
    for (int d = 0; d < dim; d++) acc[d] *= old;
    for (int t = 0; t < tokens; t++) {
        const CACHE_TYPE *value = values + t * stride;
        float weight = scores[t];
        for (int d = 0; d < dim; d++) acc[d] += weight * value_of(value[d]);
    }
    *most = top;
    *sum = total;
}

/* The usual head sizes have loops of known length. */
static void step(const float *query, const CACHE_TYPE *keys, const CACHE_TYPE *values, int64_t stride, int tokens, int dim,
                 float *most, float *sum, float *acc) {
    switch (dim) {
    case 32: step_of(query, keys, values, stride, tokens, 32, most, sum, acc); break;
    case 64: step_of(query, keys, values, stride, tokens, 64, most, sum, acc); break;
    case 128: step_of(query, keys, values, stride, tokens, 128, most, sum, acc); break;
    default: step_of(query, keys, values, stride, tokens, dim, most, sum, acc);
    }
}

/* Keys or values of `count` tokens to their slots; those with a slot below 0 are skipped. `stride`: from token to token,
   `head_stride`: from KV head to KV head, both of `from`. */
static void store(CACHE_TYPE *to, const CACHE_TYPE *from, const int64_t *slots, int64_t count, int64_t stride,
                  int64_t head_stride, int kv_heads, int dim) {
    for (int64_t i = 0; i < count; i++)
        for (int h = 0; h < kv_heads && slots[i] >= 0; h++)
            memcpy(to + (slots[i] * kv_heads + h) * dim, from + i * stride + h * head_stride, sizeof(CACHE_TYPE) * dim);
}

void paged_write(CACHE_TYPE *keys, CACHE_TYPE *values, const CACHE_TYPE *key, const CACHE_TYPE *value,
                 const int64_t *slots, int64_t count, int64_t key_stride, int64_t key_head_stride, int64_t value_stride,
                 int64_t value_head_stride, int kv_heads, int dim) {
    store(keys, key, slots, count, key_stride, key_head_stride, kv_heads, dim);
    store(values, value, slots, count, value_stride, value_head_stride, kv_heads, dim);
}

/* tokens: places in the batch of `count` query tokens; rows and seen: whose each is, and how many positions it attends to.
   out: (T, heads, dim) float. query: the same, `stride` from token to token and `head_stride` from head to head.
   work: heads * (dim + 2) floats. */
void paged_decode(float *out, const float *query, const CACHE_TYPE *keys, const CACHE_TYPE *values, const int64_t *tokens,
                  const int64_t *rows, const int64_t *seen, int64_t count, const int32_t *table, int64_t pages,
                  int64_t block_size, int64_t stride, int64_t head_stride, float scale, int heads, int kv_heads, int dim,
                  float *work) {
    int group = heads / kv_heads;
    int64_t slot_stride = (int64_t)kv_heads * dim;
    float *most = work, *sum = work + heads, *asked = sum + heads;
    for (int64_t i = 0; i < count; i++) {
        float *result = out + tokens[i] * heads * dim;
        memset(result, 0, sizeof(float) * heads * dim);
        for (int h = 0; h < heads; h++) {
            most[h] = -1e30f, sum[h] = 0.0f;
            for (int d = 0; d < dim; d++)
                asked[h * dim + d] = scale * query[tokens[i] * stride + h * head_stride + d];
        }
        for (int64_t at = 0; at < seen[i];) {
            int64_t inside = at % block_size, left = block_size - inside;
            int64_t run = left < MOST_TOKENS ? left : MOST_TOKENS;
            if (run > seen[i] - at) run = seen[i] - at;
            int64_t slot = (int64_t)table[rows[i] * pages + at / block_size] * block_size + inside;
            for (int h = 0; h < heads; h++) {
                int64_t place = slot * slot_stride + (h / group) * dim;
                step(asked + h * dim, keys + place, values + place, slot_stride, (int)run, dim, most + h, sum + h,
                     result + h * dim);
            }
            at += run;
        }
        for (int h = 0; h < heads; h++)
            for (int d = 0; d < dim; d++) result[h * dim + d] *= sum[h] > 0.0f ? 1.0f / sum[h] : 0.0f;
    }
}
