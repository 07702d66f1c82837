#include "base/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define KEY_IDENTITY "ringmaster"
#define KEY_CIPHER "TLS_AES_128_GCM_SHA256" /* which the kernel knows, too */

struct tls {
    SSL_CTX *context;
    SSL *ssl;
    bool by_key;
    uint8_t key[CRYPTO_MAC_BYTES];
};

static const unsigned char KEY_CIPHER_ID[] = { 0x13, 0x01 };

static int fail(struct error *e, enum error_kind kind, const char *what)
{
    char text[160] = "the connection was closed";
    unsigned long code = ERR_get_error();

    if (code != 0)
        ERR_error_string_n(code, text, sizeof text);
    else if (errno != 0)
        (void)strerror_r(errno, text, sizeof text);
    ERR_clear_error();
    return error_set(e, kind, "%s: %s", what, text);
}

/* ---- the client's end ------------------------------------------------------------------------------------------------- */

static int trust(SSL_CTX *context, const char *pem, struct error *e)
{
    BIO *in = BIO_new_mem_buf(pem, (int)strnlen(pem, CERTIFICATE_PEM_MAX));
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    int taken = 0;

    for (X509 *x; in != NULL && (x = PEM_read_bio_X509(in, NULL, NULL, NULL)) != NULL; X509_free(x))
        taken += X509_STORE_add_cert(store, x);
    ERR_clear_error(); /* the end of the text is one */
    BIO_free(in);
    return taken > 0 ? 0 : error_set(e, ERROR_INVALID, "there is no certificate in the authority's text");
}

static bool expect_host(SSL *ssl, const char *host)
{
    uint8_t bytes[16];

    if (inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

int tls_client_new(int fd, const char *host, const char *authority_pem, struct tls **ret, struct error *e)
{
    struct tls *t = xcalloc(1, sizeof *t);

    errno = 0;
    t->context = SSL_CTX_new(TLS_client_method());
    if (t->context == NULL || SSL_CTX_set_min_proto_version(t->context, TLS1_3_VERSION) != 1) {
        tls_free(t);
        return fail(e, ERROR_BUG, "TLS cannot be used");
    }
    SSL_CTX_set_verify(t->context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(t->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    if (trust(t->context, authority_pem, e) < 0) {
        tls_free(t);
        return -1;
    }
    t->ssl = SSL_new(t->context);
    if (t->ssl == NULL || SSL_set_fd(t->ssl, fd) != 1 || !expect_host(t->ssl, host)) {
        tls_free(t);
        return fail(e, ERROR_INVALID, "TLS cannot be begun with this host");
    }
    SSL_set_connect_state(t->ssl);
    *ret = t;
    return 0;
}

void tls_free(struct tls *t)
{
    if (t == NULL)
        return;
    SSL_free(t->ssl);
    SSL_CTX_free(t->context);
    crypto_wipe(t->key, sizeof t->key);
    free(t);
}

/* ---- by a key --------------------------------------------------------------------------------------------------------- */

static SSL_SESSION *session_of(SSL *ssl)
{
    const struct tls *t = SSL_get_app_data(ssl);
    SSL_SESSION *session = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, KEY_CIPHER_ID);

    if (session == NULL || cipher == NULL || SSL_SESSION_set1_master_key(session, t->key, sizeof t->key) != 1 ||
        SSL_SESSION_set_cipher(session, cipher) != 1 || SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        return NULL;
    }
    return session;
}

static int offer_key(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_len, SSL_SESSION **ret_session)
{
    (void)md; /* the cipher's hash is the only one on offer */
    *ret_session = session_of(ssl);
    *ret_id = (const unsigned char *)KEY_IDENTITY;
    *ret_len = strlen(KEY_IDENTITY);
    return *ret_session != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **ret_session)
{
    bool known = len == strlen(KEY_IDENTITY) && memcmp(id, KEY_IDENTITY, len) == 0;

    *ret_session = known ? session_of(ssl) : NULL;
    return 1; /* without a session the handshake fails: there is no certificate */
}

static bool prepare_by_key(struct tls *t, int fd, bool is_server)
{
    t->context = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    if (t->context == NULL || SSL_CTX_set_min_proto_version(t->context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(t->context, KEY_CIPHER) != 1)
        return false;
    /* Nothing comes after the handshake but data: the kernel's TLS hands on nothing else. */
    (void)SSL_CTX_set_num_tickets(t->context, 0);
    (void)SSL_CTX_set_options(t->context, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(t->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    (void)SSL_CTX_set_session_cache_mode(t->context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_psk_use_session_callback(t->context, offer_key);
    SSL_CTX_set_psk_find_session_callback(t->context, find_key);
    t->ssl = SSL_new(t->context);
    if (t->ssl == NULL || SSL_set_app_data(t->ssl, t) != 1 || SSL_set_fd(t->ssl, fd) != 1)
        return false;
    if (is_server)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
    return true;
}

int tls_key_new(int fd, bool is_server, const uint8_t key[CRYPTO_MAC_BYTES], struct tls **ret, struct error *e)
{
    struct tls *t = xcalloc(1, sizeof *t);

    t->by_key = true;
    memcpy(t->key, key, sizeof t->key);
    errno = 0;
    if (!prepare_by_key(t, fd, is_server)) {
        tls_free(t);
        return fail(e, ERROR_BUG, "TLS cannot be used");
    }
    *ret = t;
    return 0;
}

bool tls_pending(const struct tls *t)
{
    return SSL_has_pending(t->ssl) != 0;
}

bool tls_in_kernel(const struct tls *t)
{
    return BIO_get_ktls_send(SSL_get_wbio(t->ssl)) && BIO_get_ktls_recv(SSL_get_rbio(t->ssl)) && !tls_pending(t);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------ */

int tls_handshake(struct tls *t, bool *ret_wants_write, struct error *e)
{
    ERR_clear_error();
    errno = 0;
    int result = SSL_do_handshake(t->ssl), why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, result);

    *ret_wants_write = why == SSL_ERROR_WANT_WRITE;
    if (result == 1 && t->by_key && !SSL_session_reused(t->ssl)) /* "resumed" is OpenSSL's word for a key that both knew before */
        return error_set(e, ERROR_DENIED, "TLS handshake: the other end did not use the connection's key");
    if (result == 1)
        return 1;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return 0;
    long verdict = SSL_get_verify_result(t->ssl);
    if (verdict != X509_V_OK) {
        ERR_clear_error();
        return error_set(e, ERROR_DENIED, "the server's certificate is not taken: %s", X509_verify_cert_error_string(verdict));
    }
    return fail(e, t->by_key && why == SSL_ERROR_SSL ? ERROR_DENIED : ERROR_IO, "TLS handshake");
}

/* -1 with errno, as the system calls do. */
static ssize_t outcome(struct tls *t, int result)
{
    if (result > 0)
        return result;
    switch (SSL_get_error(t->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL: errno = errno != 0 && errno != EAGAIN ? errno : ECONNRESET; break;
    default: errno = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? ECONNRESET : EPROTO; break;
    }
    ERR_clear_error();
    return -1;
}

ssize_t tls_receive(struct tls *t, void *bytes, size_t len)
{
    ERR_clear_error();
    errno = 0;
    return outcome(t, SSL_read(t->ssl, bytes, len < INT_MAX ? (int)len : INT_MAX));
}

ssize_t tls_send(struct tls *t, const void *bytes, size_t len)
{
    ERR_clear_error();
    errno = 0;
    return outcome(t, SSL_write(t->ssl, bytes, len < INT_MAX ? (int)len : INT_MAX));
}

/* ---- a server's certificate ------------------------------------------------------------------------------------------- */

int tls_server_use(void *openssl_context, const struct certificate *c, struct error *e)
{
    BIO *certificate = BIO_new_mem_buf(c->pem, -1), *secret = BIO_new_mem_buf(c->key_pem, -1);
    X509 *x = certificate != NULL ? PEM_read_bio_X509(certificate, NULL, NULL, NULL) : NULL;
    EVP_PKEY *key = secret != NULL ? PEM_read_bio_PrivateKey(secret, NULL, NULL, NULL) : NULL;

    errno = 0;
    int result = 0;
    if (x == NULL || key == NULL || SSL_CTX_use_cert_and_key(openssl_context, x, key, NULL, 1) != 1 ||
        SSL_CTX_set_min_proto_version(openssl_context, TLS1_3_VERSION) != 1)
        result = fail(e, ERROR_INVALID, "the certificate cannot be used");
    EVP_PKEY_free(key);
    X509_free(x);
    BIO_free(secret);
    BIO_free(certificate);
    return result;
}
