package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

// golden holds h to a file of testdata, line by line. Workers of the next version
// read what those files have, and workers of the last one what is written now: where
// a format grows, there is another file, and this one stays.
func golden(t *testing.T, name string, h brokers.Headers) {
	t.Helper()
	var b strings.Builder
	for _, header := range h {
		fmt.Fprintf(&b, "%s %q %q\n", header.Name, header.Value, header.Type)
	}
	path := filepath.Join("testdata", name)
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; it would be\n%s", err, &b)
	}
	if b.String() != string(want) {
		t.Errorf("%s: headers\n%swant\n%s", path, &b, want)
	}
}

func TestHeadersOfVersion1(t *testing.T) {
	for name, of := range map[string]func() (brokers.Message, brokers.Meta){"": full, "waiting-": waiting} {
		m, meta := of()
		plain := Encode(m, meta)
		golden(t, name+"copy.v1.txt", plain)
		user, packed := EncodePacked(nil, m, meta)
		one := append(user, brokers.Header{Name: Packed, Value: string(packed)})
		golden(t, name+"packed.v1.txt", one)
		for _, h := range []brokers.Headers{plain, one} {
			if gotM, gotMeta := Decode(h, limits()); !reflect.DeepEqual(gotM, m) || !reflect.DeepEqual(gotMeta, meta) {
				t.Errorf("read %+v and %+v, want %+v and %+v", gotM, gotMeta, m, meta)
			}
		}
	}
}

// A message that waits for its dead letter has all other headers unchanged. A
// worker of a version without Death reads from them that no attempt is left.
func TestDeathLeavesTheRestAsItWas(t *testing.T) {
	m, meta := waiting()
	plain := slices.DeleteFunc(Encode(m, meta), func(h brokers.Header) bool { return IsDeath(h.Name) })
	meta.Death = nil
	if want := Encode(m, meta); !slices.Equal(plain, want) {
		t.Errorf("without the death there is\n%v\nwant\n%v", plain, want)
	}
}

// What a later version adds, this one carries along for those that read it.
func TestHeadersOfLaterVersions(t *testing.T) {
	m, meta := full()
	later := append(Encode(m, meta), brokers.Header{Name: "redrive-something-new", Value: "7"})
	got, gotMeta := Decode(later, limits())
	if !reflect.DeepEqual(gotMeta, meta) {
		t.Errorf("read %+v, want %+v", gotMeta, meta)
	}
	if again := Encode(got, gotMeta); !slices.Contains(again, later[len(later)-1]) {
		t.Errorf("a copy lost what a later version wrote: %+v", again)
	}
}
