package consumertest_test

import (
	"context"
	"fmt"
	"testing"
)

// printer stands for the *testing.T that an example does not have.
type printer struct{ testing.TB }

func (printer) Helper()                           {}
func (printer) Context() context.Context          { return context.Background() }
func (printer) Log(args ...any)                   { fmt.Println(args...) }
func (printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (printer) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
