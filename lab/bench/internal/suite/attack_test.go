//go:build unix

package suite

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
)

func TestAttacksAreCounted(t *testing.T) {
	const events = `cat <<'END'
brokers: up
{"Action":"attr","Package":"p","Test":"TestAttackA/x","Key":"innocents_harmed","Value":"2"}
{"Action":"attr","Package":"p","Test":"TestAttackB","Key":"innocents_harmed","Value":"1"}
{"Action":"attr","Package":"p","Test":"TestAttackB","Key":"redaction_probes","Value":"9"}
{"Action":"attr","Package":"p","Test":"TestAttackB","Key":"redaction_probes_held","Value":"8"}
{"Action":"fail","Package":"p","Test":"TestAttackA/x"}
{"Action":"fail","Package":"p","Test":"TestAttackA"}
{"Action":"pass","Package":"p","Test":"TestAttackB"}
{"Action":"skip","Package":"p","Test":"TestAttackC"}
{"Action":"fail","Package":"p"}
END
: > "${GOFLAGS##* }"; exit 1`
	for command, want := range map[string][]string{
		strings.Replace(events, `"${GOFLAGS##* }"`, `$(echo "$GOFLAGS" | sed "s/.*-cpu //; s/'//")`, 1): {
			"innocents_harmed\t3\tmessages\t<= 0\tshort", "peak_rss_mib\t0\tMiB\t<= 256\tok",
			"attacks_held\t1\tattacks\t>= 2\tshort", "redaction_probes_held\t8\tprobes\t>= 9\tshort",
		},
		"echo '{}'": {
			"innocents_harmed\t-\tmessages\t<= 0\tfailed", "peak_rss_mib\t-\tMiB\t<= 256\tfailed",
			"attacks_held\t-\tattacks\t>= 1\tfailed", "redaction_probes_held\t-\tprobes\t>= 1\tfailed",
		},
	} {
		a := &Attack{Suite: Suite{Root: t.TempDir(), Log: io.Discard}, Tests: []string{"sh", "-c", command}}
		if err := a.Open(); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := figure.Run(t.Context(), &out, a.Measurements())
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		if !slices.Equal(got, want) || (err != nil) != strings.HasSuffix(want[0], "failed") {
			t.Errorf("measured %q, %v, want %q", got, err, want)
		}
		a.Close(t.Context())
	}
}
