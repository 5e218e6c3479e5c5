package kafka

import "testing"

func TestIDInMetadata(t *testing.T) {
	for name, tt := range map[string]struct {
		text, id, rest string
		seen           epochEnd
	}{
		"none":            {"r1:a;bc", "", "r1:a;bc", epochEnd{}},
		"empty":           {"", "", "", epochEnd{}},
		"one":             {"tC/T;r1:t;", "C/T", "r1:t;", epochEnd{}},
		"and no more":     {"tC/T;", "C/T", "", epochEnd{}},
		"of before":       {"w3mv.lfls6q3v.3uw;r1:", "w3mv.lfls6q3v.3uw", "r1:", epochEnd{}},
		"another's text":  {"worker-7", "worker-7", "", epochEnd{}},
		"begins likewise": {"tt/T;", "t/T", "", epochEnd{}},
		"with an epoch":   {"tC/T;e7.4711;r1:e1.2;", "C/T", "r1:e1.2;", epochEnd{7, 4711}},
		"without a topic": {"tC/;e0.5;", "C/", "", epochEnd{0, 5}},
		"a damaged epoch": {"tC/T;e7;r1:a", "C/T", "r1:a", epochEnd{}},
		"a cut epoch":     {"tC/T;e7.47", "C/T", "", epochEnd{}},
	} {
		if id, seen, rest := cutLog(tt.text); id != tt.id || seen != tt.seen || rest != tt.rest {
			t.Errorf("%s: %q is %q, %v and %q, want %q, %v and %q", name, tt.text, id, seen, rest, tt.id, tt.seen, tt.rest)
		}
	}
}
