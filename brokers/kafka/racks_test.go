package kafka

import (
	"fmt"
	"testing"
)

func TestJudgeRacks(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes []node
		want  string
	}{
		"all are set up":           {[]node{{1, "a", rackAware, false}, {2, "b", rackAware, false}}, ""},
		"no racks":                 {[]node{{1, "", rackAware, false}, {2, "", rackAware, false}}, "noted cluster broker.rack= "},
		"other racks":              {[]node{{1, "c", rackAware, false}, {2, "b", rackAware, false}, {3, "c", rackAware, false}}, "noted cluster broker.rack=b, c "},
		"one has no selector":      {[]node{{1, "a", rackAware, false}, {2, "b", "", false}}, "noted broker 2 replica.selector.class= "},
		"other selectors":          {[]node{{1, "a", "com.example.Near", false}, {2, "b", "x", false}}, "noted broker 1, broker 2 replica.selector.class= "},
		"one may not be looked at": {[]node{{1, "a", rackAware, false}, {2, "b", "", true}}, "unverified broker 2 replica.selector.class= "},
		"nothing is set up":        {[]node{{1, "", "", false}}, "noted cluster broker.rack= noted broker 1 replica.selector.class= "},
	} {
		got := ""
		for _, f := range (Options{Rack: "a"}).judgeRacks(tt.nodes) {
			got += fmt.Sprintf("%v %s %s=%s ", f.Severity, f.Topic, f.Setting, f.Value)
			if f.Why == "" || f.Fix == "" {
				t.Errorf("%s: %v says not why, or not how to mend it", name, f)
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
