package dlq

import (
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// canary stands for the secret in texts.
const canary = "Canary-7x9"

// TestAttackRedaction holds Redact to testdata/secrets.txt.
func TestAttackRedaction(t *testing.T) {
	lines, held := corpus(t, "testdata/secrets.txt"), 0
	for _, line := range lines {
		plain, want := marked(line)
		got := Redact(plain)
		if got == want {
			held++
		} else {
			t.Errorf("Redact(%q)\n got %q\nwant %q", plain, got, want)
		}
		if again := Redact(got); again != got {
			t.Errorf("redacted twice: %q became %q", got, again)
		}
		for n := range min(len(plain), 200) { // a text may be cut anywhere
			Redact(plain[:n])
		}
	}
	t.Attr("redaction_probes", strconv.Itoa(len(lines)))
	t.Attr("redaction_probes_held", strconv.Itoa(held))
}

// TestRedactLeavesTheRest holds Redact to testdata/public.txt.
func TestRedactLeavesTheRest(t *testing.T) {
	for _, text := range append(corpus(t, "testdata/public.txt"), "", "wrong password ", "order 4111 ", "Bearer ") {
		if got := Redact(text); got != text {
			t.Errorf("Redact(%q) = %q, want it unchanged", text, got)
		}
	}
}

// corpus reads the lines of a file that are no comments, with what stands for
// random characters and line feeds replaced.
func corpus(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		lines = append(lines, placeholder.ReplaceAllStringFunc(line, func(s string) string {
			m := placeholder.FindStringSubmatch(s)
			if m[1] == "nl" {
				return "\n"
			}
			n, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatalf("%s: %s", file, line)
			}
			b := make([]byte, n)
			for i := range b {
				b[i] = alphabets[m[1]][random.IntN(len(alphabets[m[1]]))]
			}
			return string(b)
		}))
	}
	return lines
}

var placeholder = regexp.MustCompile(`\{(nl|hex|upper|lower|digit|alnum|b64)(?::(\d+))?\}`)

var alphabets = map[string]string{
	"hex":   "0123456789abcdef",
	"upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
	"lower": "abcdefghijklmnopqrstuvwxyz",
	"digit": "0123456789",
	"alnum": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
	"b64":   "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
}

// marked returns a line of the corpus without its marks, and with what is
// between them redacted.
func marked(line string) (plain, want string) {
	for {
		before, rest, found := strings.Cut(line, "«")
		plain, want = plain+before, want+before
		if !found {
			return plain, want
		}
		secret, after, _ := strings.Cut(rest, "»")
		plain, want, line = plain+secret, want+redacted, after
	}
}

// TestNoSecretSurvives takes secrets through an entry and its headers.
func TestNoSecretSurvives(t *testing.T) {
	for _, text := range []string{
		"Bearer " + canary,
		`{"password": "` + canary + `"}`,
		"postgres://app:" + canary + "@db/orders",
		strings.Repeat("x", rawText-20) + " password=" + canary + " y",
		strings.Repeat("x ", rawText/2-10) + "postgres://app:" + canary + strings.Repeat("z", 50) + "@db",
		"token=" + strings.Repeat("t", 2*rawText) + canary,
	} {
		var e Entry
		e.DescribeError("*errors.errorString", "", text, "panic("+text+")\nmain.f("+text+")", nil)
		if all := e.ErrorText + e.Stack; strings.Contains(all, canary) || strings.Contains(all, "Canary") {
			t.Errorf("%.80q: the secret survives in %q, %q", text, e.ErrorText, e.Stack)
		}
		for _, h := range e.Encode(0).Headers {
			if strings.Contains(h.Value, canary) {
				t.Errorf("%.80q: the secret survives in the header %s", text, h.Name)
			}
		}
	}
}
