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

struct tls { SSL_CTX *context; SSL *ssl; };

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
    *ret = t;
    return 0;
}

void tls_free(struct tls *t)
{
    if (t == NULL)
        return;
    SSL_free(t->ssl);
    SSL_CTX_free(t->context);
    free(t);
}

int tls_handshake(struct tls *t, bool *ret_wants_write, struct error *e)
{
    ERR_clear_error();
    errno = 0;
    int result = SSL_connect(t->ssl), why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, result);

    *ret_wants_write = why == SSL_ERROR_WANT_WRITE;
    if (result == 1)
        return 1;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return 0;
    long verdict = SSL_get_verify_result(t->ssl);
    if (verdict != X509_V_OK) {
        ERR_clear_error();
        return error_set(e, ERROR_DENIED, "the server's certificate is not taken: %s", X509_verify_cert_error_string(verdict));
    }
    return fail(e, ERROR_IO, "TLS handshake");
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
