package suite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
)

// Attack is what to try that a hostile sender or server can do.
type Attack struct {
	Suite
	Tests []string // a command that runs the tests, with go test -json
}

// Measurements returns what there is to measure: the tests once, and what they say
// of themselves in attributes.
func (a *Attack) Measurements() []figure.Measurement {
	return []figure.Measurement{{Name: "attack", Limit: time.Hour, Run: a.attack, Figures: []*figure.Figure{
		figure.AtMost("innocents_harmed", "messages", 0),
		figure.AtMost("peak_rss_mib", "MiB", 256),
		figure.AtLeast("attacks_held", "attacks", 1),
		figure.AtLeast("redaction_probes_held", "probes", 1),
	}}}
}

func (a *Attack) attack(ctx context.Context, samples *figure.Samples) error {
	record := filepath.Join(a.tmp, "attack")
	flags := fmt.Sprintf("GOFLAGS=-count=1 '-exec=%s -cpu %s'", a.Recorder, record)
	_, out, err := a.run(ctx, a.Root, a.Tests, flags)
	o := outcomeOf(out)
	if o.tried == 0 {
		return errors.Join(err, errors.New("no attack was tried"))
	}
	samples.Goal("attacks_held", float64(o.tried))
	samples.Add("attacks_held", float64(o.held))
	for _, name := range o.failed {
		figure.Note("attacks_held: not %s", name)
	}
	if n, ok := o.attributes["innocents_harmed"]; ok {
		samples.Add("innocents_harmed", n)
	}
	if n, ok := o.attributes["redaction_probes"]; ok {
		samples.Goal("redaction_probes_held", n)
		samples.Add("redaction_probes_held", o.attributes["redaction_probes_held"])
	}
	used, e := Recorded(record)
	peak := int64(0)
	for _, u := range used {
		figure.Note("peak_rss_mib: %d in %s", u.Peak>>20, u.Dir)
		peak = max(peak, u.Peak)
	}
	samples.Add("peak_rss_mib", float64(peak)/(1<<20))
	if o.held < o.tried {
		err = nil // which the figure says
	}
	return errors.Join(err, e)
}

// Said runs a go test -json, and returns what its tests say of themselves, with
// T.Attr: sums over all of them.
func (s *Suite) Said(ctx context.Context, command ...string) (map[string]float64, error) {
	_, out, err := s.run(ctx, s.Root, command)
	return outcomeOf(out).attributes, err
}

// outcome is what go test -json says of tests at the top.
type outcome struct {
	tried, held int
	failed      []string
	attributes  map[string]float64 // sums over all tests
}

func outcomeOf(out []byte) outcome {
	o := outcome{attributes: map[string]float64{}}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		var e struct{ Action, Package, Test, Key, Value string }
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Test == "" {
			continue // what make says, or of a package
		}
		top := !strings.Contains(e.Test, "/") && strings.HasPrefix(e.Test, "TestAttack")
		switch e.Action {
		case "attr":
			if n, err := strconv.ParseFloat(e.Value, 64); err == nil {
				o.attributes[e.Key] += n
			}
		case "pass":
			if top {
				o.tried++
				o.held++
			}
		case "fail":
			if top {
				o.tried++
				o.failed = append(o.failed, e.Package+" "+e.Test)
			}
		}
	}
	return o
}
