"""What an author runs: from manuscripts to notebooks, scripts, taught code and the site."""
