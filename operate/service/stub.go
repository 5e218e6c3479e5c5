package service

import "errors"

// Validate stands until the other branch is merged.
func (p *Policy) Validate() error {
	if p.MaxAttempts < 1 || p.MaxAttempts > 1000 || p.InitialDelayMs < 0 || p.MaxDelayMs < 0 || p.TotalBudgetMs < 0 || p.Multiplier < 0 {
		return errors.New("a number is absurd")
	}
	return nil
}
