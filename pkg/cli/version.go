package cli

import (
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build (-ldflags -X fleet/pkg/cli.version=...).
var version = "0.1.0-dev"

func newVersion(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  args(cobra.NoArgs),
		RunE:  func(*cobra.Command, []string) error { return runVersion(app) },
	}
}

// versionView is what --json prints.
type versionView struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
}

func runVersion(app *App) error {
	v := versionView{Version: version}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Go = info.GoVersion
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	if app.json {
		return app.printer().JSON(v)
	}
	return app.printer().Text("fleet " + v.Version)
}
