#include "net/tls.h"

#include <arpa/inet.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "net/loop_base.h"

struct ml_tls {
    SSL_CTX *ctx;
};

/* The newest reason in OpenSSL's error queue, which is emptied. */
static const char *reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());

    ERR_clear_error();
    return text ? text : "the file has another format";
}

static ml_tls *new_tls(const SSL_METHOD *method) {
    ml_tls *t = ml_net_take(sizeof *t);

    t->ctx = ml_net_must(SSL_CTX_new(method));
    SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION);
    SSL_CTX_set_mode(t->ctx, SSL_MODE_RELEASE_BUFFERS); /* idle connections stay small */
    return t;
}

void ml_tls_free(ml_tls *t) {
    if (!t)
        return;
    SSL_CTX_free(t->ctx);
    free(t);
}

/* --- contexts -------------------------------------------------------------------------- */

static int give_password(char *buf, int size, int writing, void *password) {
    (void)writing;
    return password ? snprintf(buf, (size_t)size, "%s", (const char *)password) : 0;
}

static ml_status load_key(ml_tls *t, const ml_tls_files *f, ml_err *err) {
    const char *key = f->key ? f->key : f->cert;

    SSL_CTX_set_default_passwd_cb(t->ctx, give_password);
    SSL_CTX_set_default_passwd_cb_userdata(t->ctx, (void *)(size_t)f->password);
    if (SSL_CTX_use_certificate_chain_file(t->ctx, f->cert) != 1)
        return ml_fail(err, ML_EUSAGE, "%s: cannot load the certificate: %s", f->cert,
                       reason());
    if (SSL_CTX_use_PrivateKey_file(t->ctx, key, SSL_FILETYPE_PEM) != 1)
        return ml_fail(err, ML_EUSAGE, "%s: cannot load the private key: %s", key,
                       reason());
    if (SSL_CTX_check_private_key(t->ctx) != 1)
        return ml_fail(err, ML_EUSAGE, "%s is not the private key of the certificate %s",
                       key, f->cert);
    return ML_OK;
}

static ml_status load_client_ca(ml_tls *t, const char *path, ml_err *err) {
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(path);

    if (!names || SSL_CTX_load_verify_locations(t->ctx, path, NULL) != 1)
        return ml_fail(err, ML_EUSAGE, "%s: cannot load the certificates: %s", path,
                       reason());
    SSL_CTX_set_client_CA_list(t->ctx, names);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return ML_OK;
}

ml_status ml_tls_server_new(ml_tls **out, const ml_tls_files *files, ml_err *err) {
    ml_tls *t = new_tls(TLS_server_method());
    ml_status st = load_key(t, files, err);

    if (st == ML_OK && files->client_ca)
        st = load_client_ca(t, files->client_ca, err);
    if (st != ML_OK) {
        ml_tls_free(t);
        t = NULL;
    }
    *out = t;
    return st;
}

ml_status ml_tls_client_new(ml_tls **out, ml_err *err) {
    ml_tls *t = new_tls(TLS_client_method());

    *out = t;
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
    if (SSL_CTX_set_default_verify_paths(t->ctx) == 1)
        return ML_OK;
    ml_tls_free(t);
    *out = NULL;
    return ml_fail(err, ML_EIO, "cannot load the certificates of the system: %s", reason());
}

/* --- connections ----------------------------------------------------------------------- */

struct bufferevent *ml_tls_accept(ml_tls *t, struct event_base *base, int fd) {
    SSL *ssl = SSL_new(t->ctx);
    struct bufferevent *bev =
        ssl ? bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE)
            : NULL;

    if (!bev)
        SSL_free(ssl);
    else /* many clients close the connection without close_notify */
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

/* A name is also sent to the server (SNI); an address is not. */
static void set_host(SSL *ssl, const char *host) {
    unsigned char address[sizeof(struct in6_addr)];
    char name[TLSEXT_MAXLEN_host_name + 1]; /* the macro's argument is not const */

    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1) {
        X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host);
        return;
    }
    ml_str_copy(name, sizeof name, ml_str_of(host));
    SSL_set_tlsext_host_name(ssl, name);
    SSL_set1_host(ssl, host);
}

struct bufferevent *ml_tls_connect(ml_tls *t, struct event_base *base, const char *host) {
    SSL *ssl = ml_net_must(SSL_new(t->ctx));

    set_host(ssl, host);
    return ml_net_must(bufferevent_openssl_socket_new(
        base, -1, ssl, BUFFEREVENT_SSL_CONNECTING, BEV_OPT_CLOSE_ON_FREE));
}

void ml_tls_end(struct bufferevent *bev) {
    SSL *ssl = bufferevent_openssl_get_ssl(bev);

    if (!ssl || !SSL_is_init_finished(ssl))
        return;
    SSL_set_shutdown(ssl, SSL_RECEIVED_SHUTDOWN); /* do not wait for the peer's */
    SSL_shutdown(ssl);
    ERR_clear_error();
}

bool ml_tls_error(struct bufferevent *bev, char *out, size_t cap) {
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    unsigned long code = ssl ? bufferevent_get_openssl_error(bev) : 0;
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    long verified = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;

    ERR_clear_error();
    if (!text)
        return false;
    if (verified != X509_V_OK)
        snprintf(out, cap,
                 "%s: %s; the environment variable SSL_CERT_FILE names a file of further "
                 "trusted certificates",
                 text, X509_verify_cert_error_string(verified));
    else
        snprintf(out, cap, "TLS: %s", text);
    return true;
}
