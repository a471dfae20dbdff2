"""Render an invoice, keep its PDF as an output, and mail it: the last is an effect, since a mail server has no undo.

The mail server is asked by the Message-ID whether it has a mail before that is sent again (mode `probe`).
"""

from __future__ import annotations

import os
import smtplib
import time
from email.message import EmailMessage
from pathlib import Path
from typing import TypedDict

from fpdf import FPDF

import fanin

app = fanin.App()
MAILBOX = Path(os.environ.get("INVOICES_MAILBOX", "mailbox"))
SMTP_PORT = int(os.environ.get("INVOICES_SMTP_PORT", "2525"))
WORK_SECONDS = float(os.environ.get("INVOICES_WORK_SECONDS", "0.5"))


class Order(TypedDict):
    number: int
    customer: str
    cents: int


class Mail(TypedDict):
    to: str
    subject: str
    text: str


@app.task(lease="2s", attempts=10, backoff="0.2s")
def invoice(order: Order) -> int:
    """One part: a PDF that only the accepted attempt shows, and the wish to mail it."""
    part = fanin.current()
    amount = f"{order['cents'] / 100:.2f} EUR"
    time.sleep(WORK_SECONDS)  # so that a kill finds something to interrupt
    with part.output("invoice.pdf") as path:
        render(order, amount, path)
    text = f"Dear {order['customer']},\n\nplease find invoice {order['number']} over {amount}.\n"
    address = f"{order['customer'].lower()}@example.org"
    part.effect("invoice-mail", Mail(to=address, subject=f"Invoice {order['number']}", text=text))
    return order["cents"]


@app.task
def total(invoices: fanin.Joined[int]) -> int:
    """The join: runs once, when every invoice is accounted for."""
    return sum(invoices)


def was_sent(request: Mail, key: str) -> str | None:
    """Ask the mail server. None: it surely has no such mail."""
    return "found in the mailbox" if (MAILBOX / file_name(key)).exists() else None


@app.effect("invoice-mail", mode="probe", probe=was_sent, timeout="3s", backoff="0.2s", attempts=100)
def send(request: Mail, key: str) -> str:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "billing@example.org", request["to"], request["subject"]
    mail["Message-ID"] = f"<{key.replace('/', '.')}@example.org>"  # the key goes where the server can find it
    mail.set_content(request["text"])
    with smtplib.SMTP("127.0.0.1", SMTP_PORT, timeout=2) as server:  # sooner than the effect's own deadline
        try:
            server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as problem:
            raise fanin.Permanent(str(problem)) from problem
    return "sent"


def file_name(key: str) -> str:
    return key.replace("/", ".") + ".eml"


def render(order: Order, amount: str, path: Path) -> None:
    pdf = FPDF()
    pdf.add_page()
    pdf.set_font("Helvetica", size=14)
    for line in (f"Invoice {order['number']}", order["customer"], amount):
        pdf.cell(0, 10, line, new_x="LMARGIN", new_y="NEXT")
    pdf.output(str(path))
