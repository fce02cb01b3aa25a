package cli

import (
	"github.com/spf13/cobra"

	"fleet/pkg/identity"
)

func newKey(app *App) *cobra.Command {
	return group("key", "Show this host's key", newKeyShow(app))
}

func newKeyShow(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print this host's public key",
		Long:  "Print this host's public key, which the other hosts need: fleet peer add HOST KEY.",
		Args:  args(cobra.NoArgs),
		RunE:  func(*cobra.Command, []string) error { return runKeyShow(app) },
	}
}

// keyView is what --json prints.
type keyView struct {
	Host identity.Host  `json:"host"`
	Key  string         `json:"key"`
	ID   identity.KeyID `json:"key_id"`
}

func runKeyShow(app *App) error {
	c, err := app.config()
	if err != nil {
		return err
	}
	signer, err := identity.LoadSigner(c.Dir)
	if err != nil {
		return err
	}
	p := app.printer()
	if app.json {
		return p.JSON(keyView{Host: c.Host, Key: signer.Public().String(), ID: signer.Public().ID()})
	}
	if p.Terminal {
		p.Say("on each other host: fleet peer add %s %s", c.Host, signer.Public())
	}
	return p.Text(signer.Public().String())
}
