"""What an operator decides before and after drains. Pure: numbers and logs in, decisions out."""
