"""The pages: each an empty frame that its script fills from the API. Nothing a user has named is put into HTML here."""

from __future__ import annotations

from flask import Blueprint, abort, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from parl_remote.monitor.guard import Guard, allowed_target
from parl_remote.monitor.sessions import Tries

__all__ = ["make_pages"]


def make_pages(guard: Guard, tries: Tries) -> Blueprint:
    """The pages as a blueprint.

    Args:
        guard: Who is let in.
        tries: How often somebody may be wrong at the login.
    """
    pages = Blueprint("pages", __name__)

    @pages.get("/")
    def overview() -> ResponseReturnValue:
        return render_template("overview.html", here="overview")

    @pages.get("/nodes")
    def nodes() -> ResponseReturnValue:
        return render_template("nodes.html", here="nodes")

    @pages.get("/nodes/<node_id>")
    def node(node_id: str) -> ResponseReturnValue:
        return render_template("node.html", here="nodes", one=node_id)

    @pages.get("/actors")
    def actors() -> ResponseReturnValue:
        return render_template("actors.html", here="actors")

    @pages.get("/actors/<actor_id>")
    def actor(actor_id: str) -> ResponseReturnValue:
        return render_template("actor.html", here="actors", one=actor_id)

    @pages.get("/drivers")
    def drivers() -> ResponseReturnValue:
        return render_template("drivers.html", here="drivers")

    @pages.get("/deaths")
    def deaths() -> ResponseReturnValue:
        return render_template("deaths.html", here="deaths")

    @pages.get("/deaths/<actor_id>")
    def death(actor_id: str) -> ResponseReturnValue:
        return render_template("death.html", here="deaths", one=actor_id)

    @pages.get("/login")
    def login() -> ResponseReturnValue:
        target = allowed_target(request.args.get("next", "/"))
        if g.visitor.known:
            return redirect(target)
        return render_template("login.html", here="login", next=target, problem="")

    @pages.post("/login")
    def sign_in() -> ResponseReturnValue:
        target = allowed_target(request.form.get("next", "/"))
        origin = request.headers.get("Origin", "null")
        if origin != "null" and origin.partition("://")[2] != request.host:
            abort(403, "the login comes from a page elsewhere")
        who = request.remote_addr or ""
        wait_s = tries.wait_s(who)
        if wait_s > 0:
            problem = f"Too many tries; wait {wait_s:.0f} seconds."
            page = Response(render_template("login.html", here="login", next=target, problem=problem), 429)
            page.headers["Content-Type"] = "text/html; charset=utf-8"
            page.headers["Retry-After"] = str(int(wait_s) + 1)
            return page
        if not guard.sessions.knows(request.form.get("token", "")):
            problem = "That is not this monitor's token."
            return render_template("login.html", here="login", next=target, problem=problem), 403
        tries.forgive(who)
        answer = redirect(target)
        answer.set_cookie(
            guard.cookie, guard.sessions.open(), httponly=True, samesite="Strict", secure=request.is_secure, path="/"
        )
        return answer

    @pages.post("/logout")
    def logout() -> ResponseReturnValue:
        guard.sessions.end(request.cookies.get(guard.cookie, ""))
        answer = redirect(url_for("pages.overview"))
        answer.delete_cookie(guard.cookie, path="/")
        return answer

    return pages
