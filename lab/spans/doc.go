// Package spans has tests of the spans that module tracing makes for the retry service
// and for jobs that send dead letters back: trees as text, in testdata. It is in the
// lab because the command and its packages do not require OpenTelemetry.
package spans
