package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Version is that of the documents which Rows prints. Fields are added, never
// renamed.
const Version = 1

// Column is one column of a table.
type Column[T any] struct {
	Title string         // on a terminal, in capitals
	Cell  func(T) string // cleaned before it is printed
}

// Rows prints rows: on a terminal as an aligned table with titles, cut to the
// terminal's width; elsewhere as tab-separated cells, nothing shortened; both
// with the same columns in the same order. Under Format JSON it prints one
// document, {"v": 1, "NAME": [...]}, of the rows themselves; name is a plain
// word.
func Rows[T any](p *Printer, name string, columns []Column[T], rows []T) error {
	if p.Format == JSON {
		if rows == nil {
			rows = []T{}
		}
		list, err := encode(rows)
		if err != nil {
			return err
		}
		return p.JSON(document{name, list})
	}
	cells := make([][]string, len(rows))
	for i, row := range rows {
		cells[i] = make([]string, len(columns))
		for j, c := range columns {
			cells[i][j] = Clean(c.Cell(row))
		}
	}
	if !p.Terminal {
		return tabs(p.Out, cells)
	}
	titles := make([]string, len(columns))
	for j, c := range columns {
		titles[j] = strings.ToUpper(c.Title)
	}
	return p.table(titles, cells)
}

// document keeps the version first.
type document struct {
	name string
	list json.RawMessage
}

// MarshalJSON writes the two fields in order.
func (d document) MarshalJSON() ([]byte, error) {
	name, err := json.Marshal(d.name)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"v":%d,%s:%s}`, Version, name, d.list), nil
}

func tabs(w io.Writer, cells [][]string) error {
	var b bytes.Buffer
	for _, row := range cells {
		b.WriteString(strings.Join(row, "\t"))
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// gap is the space between two columns.
const gap = "  "

// table prints cells under titles without lines or borders.
func (p *Printer) table(titles []string, cells [][]string) error {
	p.fit(titles, cells)
	var b bytes.Buffer
	t := tablewriter.NewTable(&b,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders: tw.BorderNone,
			Settings: tw.Settings{
				Separators: tw.SeparatorsNone,
				Lines:      tw.LinesNone,
			},
		})),
		tablewriter.WithPadding(tw.Padding{Right: gap, Overwrite: true}),
		tablewriter.WithAlignment(alignLeft(len(titles))),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithHeaderAlignment(tw.AlignLeft),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithTrimSpace(tw.Off),
	)
	t.Header(titles)
	if err := t.Bulk(cells); err != nil {
		return fmt.Errorf("lay out the table: %w", err)
	}
	if err := t.Render(); err != nil {
		return fmt.Errorf("lay out the table: %w", err)
	}
	return p.write(b.String())
}

func alignLeft(columns int) tw.Alignment {
	a := make(tw.Alignment, columns)
	for i := range a {
		a[i] = tw.AlignLeft
	}
	return a
}

// write prints a table without the spaces that pad its last column, the titles
// in bold where there may be colours.
func (p *Printer) write(table string) error {
	const bold, normal = "\x1b[1m", "\x1b[0m"
	var b strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
		line = strings.TrimRight(line, " ")
		if i == 0 && p.Colour {
			line = bold + line + normal
		}
		b.WriteString(line)
		b.WriteByte('\n')
	}
	_, err := io.WriteString(p.Out, b.String())
	return err
}

// narrowest is how far a column is cut to make a table fit.
const narrowest = 8

// fit cuts cells, widest column first, until the table fits the terminal or
// every column is as narrow as it gets. A table that still does not fit is left
// to the terminal to wrap.
func (p *Printer) fit(titles []string, cells [][]string) {
	if p.Width <= 0 || len(titles) == 0 {
		return
	}
	widths := make([]int, len(titles))
	total := -len(gap)
	for j, title := range titles {
		widths[j] = twwidth.Width(title)
		for _, row := range cells {
			widths[j] = max(widths[j], twwidth.Width(row[j]))
		}
		total += widths[j] + len(gap)
	}
	for total > p.Width {
		widest := 0
		for j := range widths {
			if widths[j] > widths[widest] {
				widest = j
			}
		}
		if widths[widest] <= max(narrowest, twwidth.Width(titles[widest])) {
			break
		}
		widths[widest]--
		total--
	}
	for _, row := range cells {
		for j, cell := range row {
			if twwidth.Width(cell) > widths[j] {
				row[j] = twwidth.Truncate(cell, widths[j], "…")
			}
		}
	}
}
