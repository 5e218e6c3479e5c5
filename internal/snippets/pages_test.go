package snippets

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/redrive-go/redrive/integration/goldentest"
)

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// page is one Markdown file.
type page struct {
	path   string // relative to the module, with slashes
	text   string
	prose  string // text with code replaced by spaces
	blocks []block
	spans  []string // inline code
	heads  []string // anchors of the headings
}

// block is fenced code.
type block struct {
	info string // what follows the fence
	line int    // of the first line of text, from 1
	text string
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	must(t, err)
	return root
}

// pages returns all pages of the module.
func pages(t *testing.T) []*page {
	t.Helper()
	root := moduleRoot(t)
	names, err := filepath.Glob(filepath.Join(root, "*.md"))
	must(t, err)
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			names = append(names, path)
		}
		return err
	})
	must(t, err)
	var all []*page
	for _, name := range names {
		path, err := filepath.Rel(root, name)
		must(t, err)
		all = append(all, readPage(t, filepath.ToSlash(path)))
	}
	return all
}

func readPage(t *testing.T, path string) *page {
	t.Helper()
	p, err := parse(path, readFile(t, path))
	must(t, err)
	return p
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	return goldentest.Read(t, filepath.Join(moduleRoot(t), filepath.FromSlash(path)))
}

// parse takes a page apart.
func parse(path, text string) (*page, error) {
	p := &page{path: path, text: text}
	var prose strings.Builder
	var open *block
	for i, line := range strings.Split(text, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{info: strings.TrimSpace(info), line: i + 2}
		case fence:
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		default:
			prose.WriteString(line)
			if strings.HasPrefix(line, "#") {
				p.heads = append(p.heads, p.anchor(line))
			}
		}
		prose.WriteByte('\n')
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the code block does not end", path, open.line-1)
	}
	p.prose = code.ReplaceAllStringFunc(prose.String(), func(span string) string {
		p.spans = append(p.spans, strings.Trim(span, "`"))
		return strings.Repeat(" ", len(span))
	})
	return p, nil
}

var code = regexp.MustCompile("`[^`\n]+`")

// anchor is the name by which a link reaches a heading, made as GitHub does.
func (p *page) anchor(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#"))) {
		switch {
		case c == ' ':
			b.WriteByte('-')
		case c == '-' || c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c):
			b.WriteRune(c)
		}
	}
	anchor, n := b.String(), 0
	for _, other := range p.heads {
		if other == anchor || strings.HasPrefix(other, anchor+"-") && strings.Trim(other[len(anchor):], "-0123456789") == "" {
			n++
		}
	}
	if n > 0 {
		return fmt.Sprintf("%s-%d", anchor, n)
	}
	return anchor
}
