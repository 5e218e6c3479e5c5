package retry

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

var update = flag.Bool("update", false, "rewrite the decisions in testdata/decide")

// TestTranscripts plays the scripts in testdata/decide. A script says how the
// runs of a message fail; the indented line below each failure is what Decide
// made of it, and is rewritten by
//
//	go test ./retry -run Transcripts -update
//
// Commands:
//
//	policy key=value …       start a message under this policy, unset fields by default
//	message                  start another message under the same policy
//	fail class key=value …   a run fails: ran=100ms hint=30s max=2 reason=decode random=0.5 times=3
//	clock ±2h                the wall clock is set
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/decide/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts in testdata/decide (%v)", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, want)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs; if the change is meant, run with -update. Got:\n%s", file, got)
			}
		})
	}
}

// transcript is a script being played.
type transcript struct {
	t      *testing.T
	out    bytes.Buffer
	policy Policy
	m      *message
	runs   int
	clock  time.Duration // how far the wall clock was set from true time
}

func play(t *testing.T, script []byte) []byte {
	tr := &transcript{t: t}
	for lines := bufio.NewScanner(bytes.NewReader(script)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, " ") {
			continue // an old answer
		}
		fmt.Fprintln(&tr.out, line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		tr.command(words[0], words[1:])
	}
	return tr.out.Bytes()
}

func (tr *transcript) command(name string, args []string) {
	tr.t.Helper()
	switch name {
	case "policy":
		tr.policy = Policy{}
		for key, value := range tr.pairs(args) {
			tr.setPolicy(key, value)
		}
		if err := tr.policy.Validate(); err != nil {
			tr.t.Fatal(err)
		}
		tr.start()
	case "message":
		tr.start()
	case "clock":
		jump := tr.duration(args[0])
		tr.clock += jump
		tr.m.f.Now = tr.m.f.Now.Add(jump)
	case "fail":
		tr.fail(classify.Class(args[0]), tr.pairs(args[1:]))
	default:
		tr.t.Fatalf("no such command: %s", name)
	}
}

func (tr *transcript) start() {
	tr.m, tr.runs, tr.clock = newMessage(tr.policy), 0, 0
}

func (tr *transcript) fail(class classify.Class, args map[string]string) {
	tr.t.Helper()
	v := classify.Verdict{Class: class}
	ran, random, times := time.Duration(0), 0.5, 1
	for key, value := range args {
		switch key {
		case "ran":
			ran = tr.duration(value)
		case "hint":
			v.RetryAfter = tr.duration(value)
		case "max":
			v.MaxAttempts = tr.int(value)
		case "reason":
			v.Reason = value
		case "random":
			random = tr.float(value)
		case "times":
			times = tr.int(value)
		default:
			tr.t.Fatalf("fail has no key %s", key)
		}
	}
	for range times {
		if tr.runs > 0 && tr.m.last.Action != ActionRetry {
			tr.t.Fatalf("the message is gone; start another one with a line %q", "message")
		}
		tr.runs++
		attempt := tr.m.f.Attempt
		d := tr.m.fail(v, ran, random)
		failedAt := tr.m.f.Now.Sub(noon) - d.Delay - tr.clock
		fmt.Fprintf(&tr.out, "    after %-12v run %d, attempt %d: %s\n", readable(failedAt), tr.runs, attempt, inWords(d))
	}
}

func inWords(d Decision) string {
	text := d.Action.String()
	if d.Action == ActionRetry {
		text += fmt.Sprintf(" in %v", d.Delay)
	}
	if d.Counted {
		return fmt.Sprintf("%s (%s)", text, d.Reason)
	}
	return fmt.Sprintf("%s (%s, not counted)", text, d.Reason)
}

func (tr *transcript) setPolicy(key, value string) {
	tr.t.Helper()
	p := &tr.policy
	switch key {
	case "attempts":
		p.MaxAttempts = tr.int(value)
	case "age":
		p.MaxAge = tr.duration(value)
	case "max-retry-after":
		p.MaxRetryAfter = tr.duration(value)
	case "free-throttles":
		p.FreeThrottles = tr.int(value)
	case "environment-delay":
		p.EnvironmentDelay = tr.duration(value)
	case "base":
		p.Backoff.Base = tr.duration(value)
	case "cap":
		p.Backoff.Cap = tr.duration(value)
	case "floor":
		p.Backoff.Floor = tr.duration(value)
	case "multiplier":
		p.Backoff.Multiplier = float64(tr.int(value))
	case "step":
		p.Backoff.Step = tr.duration(value)
	case "jitter":
		p.Backoff.Jitter = pick(tr.t, value, map[string]Jitter{"full": FullJitter, "equal": EqualJitter, "decorrelated": DecorrelatedJitter, "none": NoJitter})
	default:
		tr.t.Fatalf("policy has no key %s", key)
	}
}

func pick[T any](t *testing.T, word string, from map[string]T) T {
	t.Helper()
	v, ok := from[word]
	if !ok {
		t.Fatalf("no such value: %s", word)
	}
	return v
}

func (tr *transcript) pairs(words []string) map[string]string {
	tr.t.Helper()
	pairs := make(map[string]string)
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			tr.t.Fatalf("%q is not key=value", word)
		}
		pairs[key] = value
	}
	return pairs
}

func (tr *transcript) duration(s string) time.Duration { return must(time.ParseDuration(s))(tr.t) }
func (tr *transcript) int(s string) int                { return must(strconv.Atoi(s))(tr.t) }
func (tr *transcript) float(s string) float64          { return must(strconv.ParseFloat(s, 64))(tr.t) }

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
