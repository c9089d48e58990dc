/* The calculator that a model may call. */
#include <stdio.h>
#include <string.h>

#include "rl/builtins.h"
#include "tests/support/test.h"

typedef struct received {
    char text[400];
    int n;
} received;

static void say(miles_turn_out *out, const char *role, const char *text, size_t len) {
    received *h = out->ctx;
    CHECK(strcmp(role, "tool") == 0);
    snprintf(h->text + strlen(h->text), sizeof h->text - strlen(h->text), "%s%.*s",
             h->n ? "; " : "", (int)len, text);
    h->n++;
}

static void calculate(received *h, const char *const *expression, int n) {
    miles_call call[10];
    char arguments[10][300];
    miles_turn_in in = { .size = sizeof in, .call = call, .n_call = n };
    miles_turn_out out = { .size = sizeof out, .ctx = h, .append_message = say };
    miles_error err;

    *h = (received){ 0 };
    for (int i = 0; i < n; i++) {
        snprintf(arguments[i], sizeof arguments[i], "{\"expression\": \"%s\"}",
                 expression[i]);
        call[i] = (miles_call){ "calculator", arguments[i], 10, strlen(arguments[i]) };
    }
    CHECK(ml_generate_calculator.run(&in, &out, &err) == 0);
}

static void the_calculator_calculates(void) {
    static const struct {
        const char *expression, *value;
    } cases[] = {
        { "12*(3+4)", "84" },
        { "-2**2 + 1", "-3" },
        { "2**3**2", "512" },
        { "1/4", "0.25" },
        { "0.1+0.2", "0.3" },
        { "7 - -3", "10" },
        { "9**9**9", "error: exponents are whole numbers from 0 to 64" },
        { "999999**64", "error: the result is too large" },
        { "1/0", "error: division by zero" },
        { "(1+2", "error: a bracket is not closed" },
        { "2+", "error: a number was expected" },
        { "1.2.3", "error: a number was expected" },
        { "__import__('os')", "error: a number was expected" },
        { "3 apples", "error: this is no expression of numbers, + - * / ** and brackets" },
    };
    char deep[201];
    const char *one = deep;
    received h;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        calculate(&h, &cases[i].expression, 1);
        if (strcmp(h.text, cases[i].value) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].expression, h.text);
    }
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    calculate(&h, &one, 1);
    CHECK_HAS(h.text, "too deep");
    calculate(&h, (const char *const[]){ "1+1", "2+2" }, 2);
    CHECK(strcmp(h.text, "2; 4") == 0);
    calculate(&h, NULL, 0);
    CHECK(h.n == 0);
}

static const ml_test tests[] = {
    { "the calculator tool evaluates expressions and names errors",
      the_calculator_calculates },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
