// Package snippets keeps the documentation true. It has tests only, which read
// README.md, the other pages at the top and docs/.
//
// Go code stands in blocks marked go, and all of it compiles, in a module of
// its own that knows this one as any user does:
//
//   - A block with a package clause is a program. A block marked "text output"
//     after it is what it prints on standard output, in any order of lines; the
//     test runs it and compares.
//   - A block whose first line is a comment like "// main_test.go" is a test
//     beside the program before it, and is run too.
//   - Every other block is a fragment. The fragments of a page make up one
//     package, so a later one may use what an earlier one declares. Imports
//     are added. Those with Test functions are run. A fragment of statements is
//     put into a function that has ctx, t, broker and worker; see stage.
//
// Besides: links and anchors lead somewhere, make targets and named tests
// exist, and what is marked as generated is what the code does. After a change
// of the code
//
//	go test ./internal/snippets -update
//
// rewrites the generated parts.
package snippets
