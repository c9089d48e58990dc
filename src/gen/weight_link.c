#include "gen/weight_link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/checksum.h"

/* --- proofs ------------------------------------------------------------------- */

void ml_weight_proof(uint8_t out[ML_SHA256_BYTES], const char *key, const char *role,
                     const char *group, const uint8_t engine[ML_WEIGHT_NONCE],
                     const uint8_t trainer[ML_WEIGHT_NONCE]) {
    ml_text t = { 0 };

    ml_text_add(&t, key, strlen(key) + 1);
    ml_text_add(&t, role, strlen(role) + 1);
    ml_text_add(&t, group, strlen(group) + 1);
    ml_text_add(&t, (const char *)engine, ML_WEIGHT_NONCE);
    ml_text_add(&t, (const char *)trainer, ML_WEIGHT_NONCE);
    ml_sha256(out, (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}

ml_status ml_weight_nonce(uint8_t out[ML_WEIGHT_NONCE], ml_err *err) {
    return getrandom(out, ML_WEIGHT_NONCE, 0) == ML_WEIGHT_NONCE
               ? ML_OK
               : ml_fail(err, ML_EIO, "cannot get random bytes: %s", strerror(errno));
}

bool ml_weight_proof_is(const uint8_t *a, const uint8_t *b) {
    uint8_t differ = 0;

    for (int i = 0; i < ML_SHA256_BYTES; i++)
        differ |= (uint8_t)(a[i] ^ b[i]);
    return differ == 0;
}

/* --- opening ------------------------------------------------------------------ */

static ml_status say_hello(ml_weight_link *l, const ml_weight_link_opts *o,
                           const uint8_t *nonce, ml_err *err) {
    uint32_t n = (uint32_t)strlen(o->group), rank = (uint32_t)o->rank,
             world = (uint32_t)o->world;
    ml_text t = { 0 };
    ml_status st;

    ml_text_add(&t, ML_WEIGHT_MAGIC, sizeof ML_WEIGHT_MAGIC - 1);
    ml_text_add(&t, (const char *)&rank, sizeof rank);
    ml_text_add(&t, (const char *)&world, sizeof world);
    ml_text_add(&t, (const char *)&n, sizeof n);
    ml_text_add(&t, o->group, n);
    ml_text_add(&t, (const char *)nonce, ML_WEIGHT_NONCE);
    st = ml_tcp_write(&l->tcp, t.ptr, t.len, err);
    ml_text_release(&t);
    return st;
}

static ml_status shake_hands(ml_weight_link *l, const ml_weight_link_opts *o, ml_err *err) {
    uint8_t mine[ML_WEIGHT_NONCE], theirs[ML_WEIGHT_NONCE + ML_SHA256_BYTES],
        proof[ML_SHA256_BYTES], welcome = 0;
    ml_status st = ml_weight_nonce(mine, err);

    if (st == ML_OK)
        st = say_hello(l, o, mine, err);
    if (st == ML_OK)
        st = ml_tcp_read(&l->tcp, theirs, sizeof theirs, err);
    if (st != ML_OK)
        return st;
    ml_weight_proof(proof, o->key, "trainer", o->group, mine, theirs);
    if (!ml_weight_proof_is(proof, theirs + ML_WEIGHT_NONCE))
        return ml_fail(err, ML_EPEER, "%s does not know the key of group %s", l->tcp.peer,
                       o->group);
    ml_weight_proof(proof, o->key, "engine", o->group, mine, theirs);
    st = ml_tcp_write(&l->tcp, proof, sizeof proof, err);
    if (st == ML_OK)
        st = ml_tcp_read(&l->tcp, &welcome, 1, err);
    if (st == ML_OK && welcome != 1)
        st = ml_fail(err, ML_EPEER, "%s refused this engine", l->tcp.peer);
    return st;
}

ml_status ml_weight_link_open(ml_weight_link *out, const ml_weight_link_opts *o,
                              ml_err *err) {
    ml_status st = ml_tcp_connect(&out->tcp, o->host, o->port, o->timeout_s, err);

    if (st != ML_OK)
        return st;
    st = shake_hands(out, o, err);
    if (st != ML_OK)
        ml_weight_link_close(out);
    return st;
}

void ml_weight_link_close(ml_weight_link *l) {
    ml_tcp_close(&l->tcp);
}

/* --- tensors ------------------------------------------------------------------ */

ml_status ml_weight_link_ask(ml_weight_link *l, const char *version,
                             const char *const *name, int32_t n, ml_err *err) {
    uint32_t count = (uint32_t)n;
    uint64_t bytes;
    ml_text names = { 0 };
    ml_status st;

    ml_text_add(&names, version, strlen(version) + 1);
    for (int32_t i = 0; i < n; i++)
        ml_text_add(&names, name[i], strlen(name[i]) + 1);
    bytes = names.len;
    st = ml_tcp_write(&l->tcp, &count, sizeof count, err);
    if (st == ML_OK)
        st = ml_tcp_write(&l->tcp, &bytes, sizeof bytes, err);
    if (st == ML_OK)
        st = ml_tcp_write(&l->tcp, names.ptr, names.len, err);
    ml_text_release(&names);
    return st;
}

static ml_status read_refusal(ml_weight_link *l, ml_err *err) {
    char sentence[sizeof err->msg];
    uint32_t n = 0;
    ml_status st = ml_tcp_read(&l->tcp, &n, sizeof n, err);

    if (st == ML_OK && n >= sizeof sentence)
        return ml_fail(err, ML_EFORMAT, "%s sent a sentence of %u bytes", l->tcp.peer, n);
    if (st == ML_OK)
        st = ml_tcp_read(&l->tcp, sentence, n, err);
    return st == ML_OK ? ml_fail(err, ML_EPEER, "%s: %.*s", l->tcp.peer, (int)n, sentence)
                       : st;
}

ml_status ml_weight_link_take(ml_weight_link *l, const char *name, void *out, size_t bytes,
                              ml_err *err) {
    char sum[ML_WEIGHT_SUM + 1] = "", own[ML_CHECKSUM_TEXT];
    uint8_t refused = 0;
    uint64_t n = 0;
    ml_status st = ml_tcp_read(&l->tcp, &refused, 1, err);

    if (st == ML_OK && refused)
        return read_refusal(l, err);
    if (st == ML_OK)
        st = ml_tcp_read(&l->tcp, &n, sizeof n, err);
    if (st == ML_OK && n != bytes)
        return ml_fail(err, ML_EFORMAT,
                       "tensor %s has %llu bytes at %s, but its dtype and shape make %zu",
                       name, (unsigned long long)n, l->tcp.peer, bytes);
    if (st == ML_OK)
        st = ml_tcp_read(&l->tcp, sum, ML_WEIGHT_SUM, err);
    if (st == ML_OK)
        st = ml_tcp_read(&l->tcp, out, bytes, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "tensor %s", name);
        return st;
    }
    ml_checksum_write(own, ML_CHECKSUM_XXH3, out, bytes);
    return strcmp(sum, own) == 0
               ? ML_OK
               : ml_fail(err, ML_EPEER,
                         "tensor %s from %s does not match its checksum: its bytes changed "
                         "on the way",
                         name, l->tcp.peer);
}
