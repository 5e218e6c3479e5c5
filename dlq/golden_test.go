package dlq

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// What version 1 wrote is read by later versions, and what is written now by
// version 1: the file stays, and a format that grows gets another one.
func TestLettersOfVersion1(t *testing.T) {
	letter, stub, receipt := full(), full().Stub(), fullReceipt()
	var b strings.Builder
	for _, m := range []any{letter.Encode(unlimited), stub.Encode(unlimited), receipt.Message()} {
		fmt.Fprintf(&b, "%q\n", m)
	}
	want, err := os.ReadFile("testdata/letters.v1.txt")
	if err != nil {
		t.Fatalf("%v; it would be\n%s", err, &b)
	}
	if b.String() != string(want) {
		t.Errorf("written\n%swant\n%s", &b, want)
	}
	if got, err := Decode(letter.Encode(unlimited)); err != nil || !reflect.DeepEqual(got, letter) {
		t.Errorf("read %+v, %v, want %+v", got, err, letter)
	}
	if got, err := DecodeReceipt(receipt.Message()); err != nil || !reflect.DeepEqual(got, receipt) {
		t.Errorf("read %+v, %v, want %+v", got, err, receipt)
	}
}
