#include "cli/commands/sample_browser.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/shown.h"
#include "cli/commands/sample_text.h"
#include "cli/wrap.h"

#define LIST_KEYS                                                                          \
    "up/down  Enter: open  [ ]: other rollout  a: all  /: search  n: next  q: quit"
#define SAMPLE_KEYS "up/down: scroll  left/right: other sample  t: tokens  q: back"

enum {
    KEY_UP = 256,
    KEY_DOWN,
    KEY_LEFT,
    KEY_RIGHT,
    KEY_PAGE_UP,
    KEY_PAGE_DOWN,
    KEY_RESIZED
};

typedef struct browser {
    const char *path;
    ml_sample_query query;
    ml_tokenizer *tokenizer;
    int rows, columns; /* of the terminal */
    int64_t at, top;   /* the selected sample; the first of the list on the screen */
    int64_t rollout;   /* of the selected sample */
    int n_listed;      /* samples in the list on the screen */
    bool open, tokens; /* one sample is shown; its tokens */
    int scroll;        /* its first line on the screen */
    char search[100];  /* "": nothing was searched for */
    char notice[160];  /* shown once in the last line */
    ml_text frame;
} browser;

/* --- the terminal ------------------------------------------------------------------- */

static struct termios cooked; /* of the terminal as it was */

#define ENTER_SCREEN "\033[?1049h\033[?25l"
#define LEAVE_SCREEN "\033[?25h\033[?1049l"

static void restore(void) {
    tcsetattr(STDIN_FILENO, TCSANOW, &cooked);
    if (write(STDOUT_FILENO, LEAVE_SCREEN, strlen(LEAVE_SCREEN)) < 0)
        return;
}

static void on_signal(int number) {
    restore();
    signal(number, SIG_DFL);
    raise(number);
}

static void on_resize(int number) {
    (void)number; /* ends the read of a key */
}

static ml_status take_terminal(ml_err *err) {
    struct sigaction ends = { .sa_handler = on_signal },
                     resizes = { .sa_handler = on_resize };
    struct termios raw;

    if (tcgetattr(STDIN_FILENO, &cooked) != 0)
        return ml_fail(err, ML_EIO, "the terminal cannot be read: %s", strerror(errno));
    sigaction(SIGINT, &ends, NULL);
    sigaction(SIGTERM, &ends, NULL);
    sigaction(SIGHUP, &ends, NULL);
    sigaction(SIGWINCH, &resizes, NULL);
    raw = cooked;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs(ENTER_SCREEN, stdout);
    return ML_OK;
}

static void measure(browser *b) {
    struct winsize size = { 0 };

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        size = (struct winsize){ 0 };
    b->rows = size.ws_row > 4 ? size.ws_row : 24;
    b->columns = size.ws_col > 20 ? size.ws_col : 80;
}

static bool more_bytes(void) {
    struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };

    return poll(&p, 1, 50) == 1;
}

/* The key of an escape sequence; the escape key alone is 27. */
static int escape_key(void) {
    static const struct {
        char final;
        int key;
    } known[] = { { 'A', KEY_UP },   { 'B', KEY_DOWN },    { 'C', KEY_RIGHT },
                  { 'D', KEY_LEFT }, { '5', KEY_PAGE_UP }, { '6', KEY_PAGE_DOWN } };
    char s[8] = { 0 };
    ssize_t n = more_bytes() ? read(STDIN_FILENO, s, sizeof s - 1) : 0;

    if (n <= 0)
        return 27;
    for (size_t i = 0; n >= 2 && i < sizeof known / sizeof *known; i++)
        if (s[1] == known[i].final)
            return known[i].key;
    return 0;
}

/* -1: the terminal is gone. */
static int read_key(void) {
    unsigned char c;
    ssize_t n = read(STDIN_FILENO, &c, 1);

    if (n < 0 && errno == EINTR)
        return KEY_RESIZED;
    if (n != 1)
        return -1;
    return c == 27 ? escape_key() : c;
}

/* Appends the text as one line of the screen. */
static void put_line(browser *b, ml_str s, bool reverse) {
    ml_str shown = ml_clip(s, b->columns);

    ml_text_printf(&b->frame, "%s%.*s\033[K%s\n", reverse ? "\033[7m" : "", (int)shown.len,
                   shown.ptr, reverse ? "\033[0m" : "");
}

static void put_keys(browser *b, const char *keys) {
    ml_str s = ml_clip(ml_str_of(*b->notice ? b->notice : keys), b->columns);

    ml_text_printf(&b->frame, "\033[J\033[%d;1H\033[7m%.*s\033[K\033[0m", b->rows,
                   (int)s.len, s.ptr);
    *b->notice = 0;
}

static void begin_frame(browser *b) {
    b->frame.len = 0;
    ml_text_printf(&b->frame, "\033[H");
}

static void show_frame(const browser *b) {
    fwrite(b->frame.ptr, 1, b->frame.len, stdout);
    fflush(stdout);
}

/* --- the list ------------------------------------------------------------------------- */

static bool list_row(void *ud, int64_t rollout, const char *set, const ml_sample *s) {
    browser *b = ud;
    bool selected = b->top + b->n_listed++ == b->at;
    ml_text t = { 0 };

    (void)set;
    ml_text_printf(&t, "%7lld %7lld ", (long long)rollout, (long long)s->group);
    if (s->has_reward)
        ml_text_printf(&t, "%8.4g", s->reward);
    else
        ml_text_printf(&t, "       -");
    ml_text_printf(&t, "  %-10s %6d  ", ml_sample_status_name(s->status), s->n_response);
    ml_text_show(&t, s->response, ML_SHOWN_ONE_LINE);
    put_line(b, (ml_str){ t.ptr, t.len }, selected);
    if (selected)
        b->rollout = rollout;
    ml_text_release(&t);
    return true;
}

static ml_status find(browser *b, int64_t from, int64_t n, ml_sample_each *each,
                      ml_err *err) {
    ml_sample_query q = b->query;

    q.n_skip += from;
    q.n_most = n;
    return ml_run_store_find(b->path, &q, each, b, err);
}

static ml_status draw_list(browser *b, ml_err *err) {
    int height = b->rows - 2;
    ml_status st;

    if (b->at < b->top)
        b->top = b->at;
    if (b->at >= b->top + height)
        b->top = b->at - height + 1;
    begin_frame(b);
    put_line(b, ml_str_of("rollout   group   reward  status     tokens  answer"), false);
    b->n_listed = 0;
    st = find(b, b->top, height, list_row, err);
    if (st == ML_OK && b->n_listed && b->at >= b->top + b->n_listed) { /* beyond the end */
        b->at = b->top + b->n_listed - 1;
        return draw_list(b, err);
    }
    if (st == ML_OK && !b->n_listed && b->top > 0) {
        b->at = b->top - 1;
        return draw_list(b, err);
    }
    if (!b->n_listed)
        put_line(b, ml_str_of("no matching sample"), false);
    put_keys(b, LIST_KEYS);
    return st;
}

/* --- one sample ------------------------------------------------------------------------ */

static void add_part(ml_text *t, const char *name, ml_str s) {
    ml_text_printf(t, "\n--- %s\n", name);
    ml_text_show(t, s, ML_SHOWN_LINES);
    ml_text_printf(t, "\n");
}

/* Appends the lines of the text that are on the screen, wrapped; returns how many there are. */
static int put_lines(browser *b, char *text) {
    int n = 0, height = b->rows - 1;

    for (char *line = text, *next; line; line = next) {
        ml_text wrapped = { 0 };
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        ml_wrap(&wrapped, line, b->columns);
        for (char *s = wrapped.ptr, *end; s; s = end) {
            end = strchr(s, '\n');
            if (end)
                *end++ = 0;
            if (n >= b->scroll && n < b->scroll + height)
                put_line(b, ml_str_of(s), false);
            n++;
        }
        ml_text_release(&wrapped);
    }
    return n;
}

static bool draw_one(void *ud, int64_t rollout, const char *set, const ml_sample *s) {
    browser *b = ud;
    int n, height = b->rows - 1;
    ml_text t = { 0 };

    b->rollout = rollout;
    b->n_listed = 1;
    ml_sample_text_head(&t, rollout, set, s);
    if (b->tokens) {
        ml_text_printf(&t, "\n\n");
        ml_sample_text_tokens(&t, b->tokenizer, s);
    } else {
        add_part(&t, "prompt", s->prompt);
        add_part(&t, "answer", s->response);
        if (s->label.len)
            add_part(&t, "label", s->label);
    }
    n = put_lines(b, t.ptr);
    if (b->scroll > 0 && b->scroll > n - height) { /* the end stays at the bottom */
        b->scroll = n > height ? n - height : 0;
        ml_text_release(&t);
        begin_frame(b);
        return draw_one(ud, rollout, set, s);
    }
    ml_text_release(&t);
    return true;
}

static ml_status draw_sample(browser *b, ml_err *err) {
    ml_status st;

    begin_frame(b);
    b->n_listed = 0;
    st = find(b, b->at, 1, draw_one, err);
    if (st == ML_OK && !b->n_listed && b->at > 0) { /* beyond the end */
        b->at--;
        return draw_sample(b, err);
    }
    put_keys(b, SAMPLE_KEYS);
    return st;
}

/* --- searching ---------------------------------------------------------------------------- */

typedef struct search {
    const char *text;
    int64_t n; /* samples that were looked at */
    bool found;
} search;

static bool contains(ml_str s, const char *text) {
    return s.len && memmem(s.ptr, s.len, text, strlen(text));
}

static bool look(void *ud, int64_t rollout, const char *set, const ml_sample *s) {
    search *to = ud;

    (void)rollout, (void)set;
    to->n++;
    to->found = contains(s->prompt, to->text) || contains(s->response, to->text);
    return !to->found;
}

/* Selects the next sample whose prompt or answer contains the text. */
static ml_status search_next(browser *b, ml_err *err) {
    search to = { .text = b->search };
    ml_sample_query q = b->query;
    ml_status st;

    q.n_skip += b->at + 1;
    st = ml_run_store_find(b->path, &q, look, &to, err);
    if (to.found)
        b->at += to.n;
    else
        snprintf(b->notice, sizeof b->notice, "no later sample contains '%s'", b->search);
    return st;
}

/* Reads the text to search for in the last line; false: the user gave up. */
static bool ask_search(browser *b) {
    size_t n = 0;

    for (;;) {
        int key;
        printf("\033[%d;1H\033[K/%.*s\033[?25h", b->rows, (int)n, b->search);
        fflush(stdout);
        key = read_key();
        if (key == '\n' || key == '\r' || key == 27 || key == -1) {
            fputs("\033[?25l", stdout);
            b->search[n] = 0;
            return n && (key == '\n' || key == '\r');
        }
        if ((key == 127 || key == 8) && n > 0)
            n--;
        else if (key >= ' ' && key < 256 && key != 127 && n < sizeof b->search - 1)
            b->search[n++] = (char)key;
    }
}

/* --- keys ------------------------------------------------------------------------------------ */

/* The rollout before (-1) or after (1) the one on the screen. */
static void other_rollout(browser *b, int64_t by) {
    bool one = b->query.rollout != ML_ALL_ROLLOUTS;
    int64_t rollout = (one ? b->query.rollout : b->rollout) + by;

    if (rollout < (b->query.evals ? -1 : 0))
        return;
    b->query.rollout = rollout;
    b->at = b->top = 0;
    snprintf(b->notice, sizeof b->notice, "rollout %lld; a: all rollouts",
             (long long)rollout);
}

static void move(browser *b, int64_t by) {
    b->at = b->at + by < 0 ? 0 : b->at + by;
}

/* False: the user quits. */
static bool list_key(browser *b, int key, ml_status *st, ml_err *err) {
    int page = b->rows - 2;

    if (key == 'q' || key == 27)
        return false;
    if (key == KEY_DOWN || key == 'j')
        move(b, 1);
    else if (key == KEY_UP || key == 'k')
        move(b, -1);
    else if (key == KEY_PAGE_DOWN || key == ' ')
        move(b, page);
    else if (key == KEY_PAGE_UP || key == 'b')
        move(b, -page);
    else if (key == 'g')
        b->at = 0;
    else if (key == ']')
        other_rollout(b, 1);
    else if (key == '[')
        other_rollout(b, -1);
    else if (key == 'a')
        b->query.rollout = ML_ALL_ROLLOUTS, b->at = b->top = 0;
    else if ((key == '/' && ask_search(b)) || (key == 'n' && *b->search))
        *st = search_next(b, err);
    else if ((key == '\n' || key == '\r' || key == KEY_RIGHT) && b->n_listed)
        b->open = true, b->scroll = 0;
    return true;
}

static void sample_key(browser *b, int key) {
    int page = b->rows - 2, by = 0;

    if (key == 'q' || key == 27)
        b->open = false;
    else if (key == KEY_RIGHT || key == 'l')
        move(b, 1), b->scroll = 0;
    else if (key == KEY_LEFT || key == 'h')
        move(b, -1), b->scroll = 0;
    else if (key == 't')
        b->tokens = !b->tokens, b->scroll = 0;
    else if (key == KEY_DOWN || key == 'j' || key == '\n' || key == '\r')
        by = 1;
    else if (key == KEY_UP || key == 'k')
        by = -1;
    else if (key == KEY_PAGE_DOWN || key == ' ')
        by = page;
    else if (key == KEY_PAGE_UP || key == 'b')
        by = -page;
    b->scroll = b->scroll + by < 0 ? 0 : b->scroll + by;
}

static ml_status browse(browser *b, ml_err *err) {
    ml_status st = ML_OK;
    int key = 0;

    while (st == ML_OK && key != -1) {
        measure(b);
        st = b->open ? draw_sample(b, err) : draw_list(b, err);
        show_frame(b);
        key = read_key();
        if (b->open)
            sample_key(b, key);
        else if (st == ML_OK && !list_key(b, key, &st, err))
            break;
    }
    return st;
}

ml_status ml_sample_browser(const char *path, const ml_sample_query *query,
                            ml_tokenizer *tokenizer, ml_err *err) {
    browser b = { .path = path, .query = *query, .tokenizer = tokenizer };
    ml_status st = take_terminal(err);

    if (st != ML_OK)
        return st;
    st = browse(&b, err);
    fflush(stdout);
    restore();
    ml_text_release(&b.frame);
    return st;
}
